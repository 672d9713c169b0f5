"""Tools out of Python files and modules: what `--tools` names on the command line.

Loading runs the file, as importing does. Whatever is wrong with it is said in one line that names the
place, because the person who reads it is starting a server, not debugging one.
"""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from antiphon.domain.errors import ConfigurationError
from antiphon.tools.function import FunctionTool, tool_of


def load_tools(source: str) -> list[FunctionTool]:
    """The tools in `FILE.py`, `module`, `module:name` or `FILE.py:name`, in the order of definition.

    The working directory can be imported from. Raises `ConfigurationError`: no such file or module,
    an error while it is imported (with the line), no `@tool` in it, a name that is not a tool.
    """
    place, name = _split(source)
    module = _file_module(place) if place.endswith(".py") else _named_module(place)
    if name:
        return [_named_tool(module, name, source)]
    found = list({id(made): made for made in map(tool_of, vars(module).values()) if made}.values())
    if not found:
        raise ConfigurationError(
            f"{source}: no tools found", hint="put @tool (from antiphon import tool) above a function"
        )
    return found


def _split(source: str) -> tuple[str, str]:
    place, colon, name = source.rpartition(":")
    return (place, name) if colon and name.isidentifier() else (source, "")


def _named_tool(module: ModuleType, name: str, source: str) -> FunctionTool:
    if not hasattr(module, name):
        raise ConfigurationError(f"{source}: there is no {name!r} in it")
    made = tool_of(getattr(module, name))
    if made is None:
        raise ConfigurationError(f"{source}: {name!r} is not a tool", hint="decorate it with @tool")
    return made


def _named_module(name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"there is no module {error.name!r}", hint="a file is given with its ending: FILE.py"
            ) from error
        raise _import_failure(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _file_module(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {place}")
    _make_importable(Path.cwd())
    _make_importable(path.parent)
    # The name holds a digest of the path: tools.py must neither shadow nor be shadowed by a module.
    name = f"antiphon_tools_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{place} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_failure(place, error) from error
    return module


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _import_failure(source: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"{source} cannot be imported: {_place_of(error)}{type(error).__name__}: {error}"
    )


def _place_of(error: BaseException) -> str:
    """`FILE:LINE: ` of the user's own line that failed, not of the import machinery beneath it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _is_users(filename: str) -> bool:
    machinery = ("<frozen ", str(Path(importlib.__file__).parent), str(Path(__file__).parent))
    return not filename.startswith(machinery)
