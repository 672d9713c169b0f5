"""As much of curl as the tutorial uses, for machines that have none: -s -N -f -H -d --max-time URL."""

import sys
import time
import urllib.error
import urllib.request

TIMED_OUT, HTTP_ERROR, NO_CONNECTION = 28, 22, 7


def main(arguments: list[str]) -> int:
    """Print what the address answers; curl's exit codes."""
    headers, body, url, most_s, must_succeed = {}, None, "", 60.0, False
    while arguments:
        match arguments.pop(0):
            case "-H":
                name, _, value = arguments.pop(0).partition(":")
                headers[name] = value.strip()
            case "-d":
                body = arguments.pop(0).encode()
            case "--max-time":
                most_s = float(arguments.pop(0))
            case str() as flags if flags.startswith("-"):
                must_succeed = must_succeed or "f" in flags
            case address:
                url = address
    ends_at = time.monotonic() + most_s
    try:
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - the tutorial's own URLs
        with urllib.request.urlopen(request, timeout=most_s) as answer:  # noqa: S310 - as above
            while piece := answer.read1(65536):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                if time.monotonic() > ends_at:
                    return TIMED_OUT
    except urllib.error.HTTPError:
        return HTTP_ERROR if must_succeed else 0
    except TimeoutError:
        return TIMED_OUT
    except OSError:
        return NO_CONNECTION
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
