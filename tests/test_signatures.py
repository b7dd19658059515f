"""What the public names take: parameters, defaults and options, kept in ``tests/snapshots``; types are for mypy."""

import inspect
import re
from inspect import Parameter, Signature
from pathlib import Path

import bertflow
from bertflow import kinds


def signature(name, value):
    """A function, a class, or a property, as users write it."""
    if isinstance(value, property):
        return name
    taken = inspect.signature(value)
    options = [key for one in taken.parameters.values() if one.kind is Parameter.VAR_KEYWORD for key in keys(one)]
    parameters = [one.replace(annotation=Parameter.empty) for one in taken.parameters.values()]
    text = str(taken.replace(parameters=parameters, return_annotation=Signature.empty))
    return name + re.sub(" at 0x[0-9a-f]+", "", text) + (f", options: {', '.join(options)}" if options else "")


def keys(parameter):
    """What ``**options`` may hold, where it is typed."""
    return [key for kind in getattr(parameter.annotation, "__args__", ()) for key in sorted(kind.__annotations__)]


def members(kind):
    """The public methods and properties of a class that are defined in this package."""
    for name, static in inspect.getmembers_static(kind):
        value = static if isinstance(static, property) else getattr(kind, name)
        function = inspect.unwrap(value.fget if isinstance(value, property) else value)
        own = callable(function) and (getattr(function, "__module__", None) or "").startswith("bertflow")
        if own and not name.startswith("_"):
            yield name, value


def test_what_public_names_take(snapshot):
    lines = []
    for name in bertflow.__all__:
        value = getattr(bertflow, name)
        lines += [signature(name, value)] if callable(value) else [name]
        lines += [f"    {signature(*one)}" for one in members(value)] if inspect.isclass(value) else []
    snapshot("signatures", "\n".join(lines))


def test_kinds_are_those_that_public_functions_name():
    desk = "".join(path.read_text("utf-8") for path in Path(bertflow.__file__).with_name("api").glob("*.py"))
    assert sorted(kinds.__all__) == sorted(set(re.findall(r"\bkinds\.(\w+)", desk)))
    assert all(getattr(kinds, name).__name__ == name for name in kinds.__all__)
