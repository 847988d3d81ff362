"""Functions as text references: ``module:qualname`` or a registered name.

Following one does nothing but import the module that it names. Who may hand one in is not judged here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import JobDefinitionError

__all__ = ["check_call", "default_id", "func_ref", "may_stand_in", "resolve_ref"]

Function = Callable[..., Any]

_LONGEST_ID = 255


def _describe(func: object) -> str:
    """Return how an error names a function or whatever was given in its place."""
    qualname = getattr(func, "__qualname__", None)
    if isinstance(qualname, str):
        return f"{getattr(func, '__module__', None) or '?'}.{qualname}"
    return f"an instance of {type(func).__module__}.{type(func).__qualname__}"


def _path(func: Function) -> tuple[str, str]:
    """Return module and dotted name by which a function can be found again.

    :raises JobDefinitionError: when it has none; the message ends where the cure begins.
    """
    if not callable(func):
        raise JobDefinitionError(f"{_describe(func)} cannot be called")
    if isinstance(func, functools.partial):
        raise JobDefinitionError(f"a partial of {_describe(func.func)} has no name of its own")
    owner = getattr(func, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        if not isinstance(owner, type):
            raise JobDefinitionError(
                f"{_describe(func)} is bound to an instance of {type(owner).__qualname__}"
            )
        # A class method may be inherited: its own __qualname__ would name the class that it came from.
        module, qualname = owner.__module__, f"{owner.__qualname__}.{getattr(func, '__name__', '')}"
    else:
        module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", None)  # type: ignore[assignment]
    # An instance of a class has its class's __module__, but no __qualname__.
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise JobDefinitionError(f"{_describe(func)} has no name of its own")
    if "<lambda>" in qualname:
        raise JobDefinitionError(f"a lambda ({module}.{qualname}) has no name of its own")
    if "<locals>" in qualname:
        raise JobDefinitionError(f"{module}.{qualname} is defined inside another function")
    return module, qualname


def _flask_name_of_main() -> str:
    """Return what Flask calls the script that runs: its file's name without the extension."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return "__main__" if file is None else os.path.splitext(os.path.basename(file))[0]


def _main_is(name: str) -> bool:
    """Tell whether importing this name would import the script that runs.

    It is found, not imported: that would run the script a second time.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None or name != _name_of_main() or not _is_dotted(name):
        return False
    try:
        found = importlib.util.find_spec(name)
        return found is not None and found.origin is not None and os.path.samefile(found.origin, file)
    except Exception:
        return False


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _name_of_main() -> str:
    """Return the name of the script that runs as a module: as given to ``python -m``, else of its file."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _flask_name_of_main() if spec is None else str(spec.name)


def _same(found: Function, func: Function) -> bool:
    # Two looks at a method give two equal objects. For what is no method, equality is the object's own idea.
    return found is func or (getattr(func, "__self__", None) is not None and found == func)


def default_id(func: Function) -> str:
    """Return the id of a job that was given none: ``module.qualname`` of its function.

    ``__main__`` is read as Flask reads it: as the name of the script's file.

    :raises JobDefinitionError: for a lambda, a nested function, a partial, a method of an instance, an
        instance that can be called, or an id that is too long: these need an id.
    """
    try:
        module, qualname = _path(func)
    except JobDefinitionError as error:
        raise JobDefinitionError(f'{error}, so the job needs an id: give id="..."') from None
    id = f"{_flask_name_of_main() if module == '__main__' else module}.{qualname}"
    if len(id) > _LONGEST_ID:
        raise JobDefinitionError(
            f"the id {id[:60]}… has {len(id)} characters and may have {_LONGEST_ID}, so the job needs a "
            f'shorter one: give id="..."'
        )
    return id


def func_ref(func: Function, *, registry: Mapping[str, Function]) -> str:
    """Return the text that leads back to a function: ``module:qualname``, or its registered name.

    Module-level functions and classes, and static and class methods through their class, are named by
    their module, whether registered or not. A function of the script that runs is named by the script
    as a module, if that module can be found. Anything else has to be registered.

    :param registry: names given with ``register`` or ``task`` -> function.
    :raises JobDefinitionError: when nothing leads back to the same function.
    """
    try:
        module, qualname = _path(func)
        ref = f"{_name_of_main() if module == '__main__' else module}:{qualname}"
        if module == "__main__" and not _main_is(_name_of_main()):
            raise JobDefinitionError(
                f"{qualname} is defined in the script that runs, which no other process can import"
            )
        found = _follow(ref, sys.modules.get(module) or _import(module))
        if not _same(found, func):
            raise JobDefinitionError(
                f"{ref} is another object than the function given (did a decorator wrap it?)"
            )
        return ref
    except JobDefinitionError as error:
        for name, registered in registry.items():
            if _same(registered, func):
                return name
        raise JobDefinitionError(
            f"{error}, so it cannot be stored. Use a function at the top level of a module and hand values "
            f"over with args= and kwargs=, or give it a name with register(func, name)"
        ) from error


def resolve_ref(ref: str, *, registry: Mapping[str, Function]) -> Function:
    """Return the function that a reference leads to; nothing is executed but the import of its module.

    A reference to the script that runs leads into it, not to a second copy.

    :raises JobDefinitionError: when it leads nowhere; the message says where it ends.
    """
    if not isinstance(ref, str):
        raise JobDefinitionError(f"a reference to a function is a text, not {type(ref).__qualname__}")
    if ref in registry:
        return registry[ref]
    module_name, colon, _ = ref.partition(":")
    if not colon:
        raise JobDefinitionError(
            f"no function is registered as {ref!r} in this process, and it is no module:name"
        )
    if not _is_dotted(module_name):
        raise JobDefinitionError(f"{ref!r} is no module:name of plain identifiers")
    return _follow(ref, sys.modules["__main__"] if _main_is(module_name) else _import(module_name))


def _follow(ref: str, module: types.ModuleType) -> Function:
    """Return the function that the second half of a reference leads to, within a module."""
    qualname = ref.partition(":")[2]
    parts = qualname.split(".")
    if not all(part.isidentifier() and not part.startswith("__") for part in parts):
        raise JobDefinitionError(f"{ref!r} is no module:name of plain identifiers")
    found: Any = module
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise JobDefinitionError(f"module {ref.partition(':')[0]!r} has no {qualname}") from error
        except Exception as error:
            raise JobDefinitionError(
                f"{ref!r} cannot be followed: {type(error).__name__}: {error}"
            ) from error
    if not callable(found):
        raise JobDefinitionError(f"{ref!r} leads to a {type(found).__qualname__}, which cannot be called")
    return found  # type: ignore[no-any-return]


def _import(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise JobDefinitionError(f"this process has no module {name!r}") from error
        raise JobDefinitionError(f"module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        # SystemExit: a script that ends itself when imported must not end the process that looks at it.
        raise JobDefinitionError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def check_call(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a function takes the arguments, without calling it.

    :raises JobDefinitionError: naming the argument that is missing, unknown or given twice.
    """
    try:
        # As APScheduler does: what counts is what the outermost wrapper takes.
        signature = inspect.signature(func, follow_wrapped=False)
    except ValueError:
        return  # Some builtins do not tell what they take.
    except TypeError:
        raise JobDefinitionError(f"{_describe(func)} cannot be called") from None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "none"
        raise JobDefinitionError(
            f"{_describe(func)} cannot be called so: {error} (it takes: {taken})"
        ) from None


def may_stand_in(other: Function, func: Function) -> bool:
    """Tell whether ``other`` takes some call that ``func`` takes; True also when it cannot be told.

    Two calls are tried: with every argument that ``func`` names, and with those it cannot do without.
    """
    try:
        named = inspect.signature(func, follow_wrapped=False).parameters.values()
        takes = inspect.signature(other, follow_wrapped=False)
    except (TypeError, ValueError):
        return True
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in named):
        return True
    needed = [parameter for parameter in named if parameter.default is parameter.empty]
    return any(_takes(takes, parameters) for parameters in (needed, list(named)))


def _takes(signature: inspect.Signature, parameters: Sequence[inspect.Parameter]) -> bool:
    by_name = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    free = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    fixed = len(parameters) - len(by_name) - len(free)
    # A view's arguments come by name, others' by place.
    for args, kwargs in ((fixed + len(free), by_name), (fixed, [*free, *by_name])):
        try:
            signature.bind(*[None] * args, **dict.fromkeys(kwargs))
        except TypeError:
            continue
        return True
    return False
