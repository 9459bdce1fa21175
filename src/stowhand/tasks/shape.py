"""The parameters of a task, and the reading and writing of payloads for them. Computed when the task is declared.

A payload is an object keyed by parameter name, or any JSON value if the only parameter is called ``payload``. An
enqueue call reads it back with the decoder of the worker, so a worker can call the task with every accepted payload.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn, get_type_hints

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, PayloadMismatch, UndecodablePayload
from stowhand.hints import find_advice, find_equivalents
from stowhand.jobs import strict_json
from stowhand.jobs.strict_json import TypeLoss, find_loss, is_plain
from stowhand.protocols.handler import innermost_function, is_async
from stowhand.tasks.context import BlockingHelpers, Context, Helpers, SyncContext
from stowhand.tasks.options import OPTION_NAMES as OPTIONS
from stowhand.tasks.resource import Resource

ABSENT: Final = object()
_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Shape:
    """The parameters of one task; reads and writes its payloads."""

    def __init__(
        self,
        task: str,
        parameters: list[Parameter],
        *,
        whole: str | None,
        injected: InjectedParameters,
        poison: bool = False,
        by_position: tuple[str, ...] = (),
    ) -> None:
        self.task = task
        self.by_position = by_position
        """Arguments that the function accepts by position only."""
        self._poison = poison
        """Whether a payload that does not fit is poison, instead of an error of the attempt."""
        self.whole = whole
        """The parameter that takes the whole payload; ``None`` if the payload is keyed by parameter name."""
        self.injected = injected
        self.injects = injected != InjectedParameters()
        """Whether the worker supplies at least one parameter."""
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(parameter.name for parameter in parameters if parameter.by_position)
        self._required = tuple(parameter.name for parameter in parameters if parameter.default is ABSENT)
        self._defaults = {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not ABSENT
        }
        self._decoder = _decoder_for(parameters, whole)
        self._typed = frozenset(parameter.name for parameter in parameters if not _allows_any(parameter.annotation))
        self._context_hint = _context_hint(parameters)
        self.written: str | None = None
        """The last payload written here, which needs no further check."""

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the payload of a call as text. Raises InvalidJob that names the parameter."""
        bound = self._bind(args, kwargs)
        return self.write_value(bound if self.whole is None else bound.get(self.whole, ABSENT))

    def write_value(self, payload: object) -> str:
        """Return a ready payload as text. Raises InvalidJob when this task could not be called with it."""
        if payload is ABSENT:
            payload = self._defaults.get(self.whole or "", {})
        text = strict_json.encode(payload)
        decoded = self._decode(text)
        if not is_plain(payload):
            self._refuse_losses(payload, decoded)
        self.written = text
        return text

    def check(self, text: str) -> None:
        """Raise InvalidJob when this task could not be called with this payload."""
        self._decode(text)

    def _decode(self, text: str) -> Any:
        """Decode a payload. Raises InvalidJob when this task could not be called with it."""
        try:
            return self._decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, TypeError):
            # The slow way ignores undeclared arguments of the enqueuer and names the argument in the error.
            try:
                arguments = self.read(text)
            except (UndecodablePayload, PayloadMismatch) as error:
                raise InvalidJob(str(error)) from None
        return arguments[self.whole] if self.whole is not None else types.SimpleNamespace(**arguments)

    def _refuse_losses(self, payload: object, decoded: object) -> None:
        """Raise InvalidJob if the task would be called with another type than the caller passed."""
        if self.whole is not None:
            values: Iterable[tuple[str, object, object]] = [(self.whole, payload, decoded)]
        elif isinstance(payload, Mapping):
            values = ((name, payload[name], getattr(decoded, name)) for name in self.names if name in payload)
        else:  # a model whose fields are the arguments
            values = ((name, getattr(payload, name), getattr(decoded, name)) for name in self.names)
        for name, value, decoded_value in values:
            if (loss := find_loss(value, decoded_value, is_typed=name in self._typed)) is not None:
                self._reject(f"argument '{name}{loss.path}': {loss}; {_remedy(name, loss)}")

    def read(self, text: str | None) -> dict[str, Any]:
        """Return the keyword arguments for a stored payload. Raises UndecodablePayload, PayloadMismatch."""
        if not self.names:
            if text is None or text == "{}":
                return {}
        elif text is None:
            text = "{}"
        try:
            value = strict_json.decode_with(self._decoder, text, limit=strict_json.MAX_READ_BYTES)
        except UndecodablePayload as error:
            value = self._read_again(text, error)
        if self.whole is not None:
            return {self.whole: value}
        arguments = msgspec.structs.asdict(value)
        for name in self._defaults:
            if arguments[name] is ABSENT:
                del arguments[name]
        return arguments

    def _read_again(self, text: str, error: UndecodablePayload) -> Any:
        """Read a payload without undeclared names that begin with ``_``: they belong to the enqueuer (``_cron``)."""
        if self.whole is None and isinstance(error.__cause__, msgspec.ValidationError):
            value = strict_json.decode(text)
            if isinstance(value, dict):
                known_arguments = {
                    key: item for key, item in value.items() if key in self.names or not key.startswith("_")
                }
                if len(known_arguments) < len(value):
                    return self._read_arguments(known_arguments)
        raise self._refusal(error) from error.__cause__

    def _read_arguments(self, arguments: dict[str, Any]) -> Any:
        try:
            return strict_json.decode_with(self._decoder, msgspec.json.encode(arguments).decode())
        except UndecodablePayload as error:
            raise self._refusal(error) from error.__cause__

    def _refusal(self, error: UndecodablePayload) -> UndecodablePayload | PayloadMismatch:
        text = str(error)
        problem, is_nested, path = text.partition(" - at '$.")
        if is_nested:
            text = f"argument '{path}: {problem}"
        elif self.whole is None and text.startswith("Object missing required field "):
            text = f"missing argument {text.removeprefix('Object missing required field ')}{self._context_hint}"
        elif self.whole is None and text.startswith("Object contains unknown field "):
            text = f"unexpected argument {text.removeprefix('Object contains unknown field ')}{self._takes()}"
        text = f"payload of task {self.task!r}: {text}"
        if self._poison or not isinstance(error.__cause__, msgspec.ValidationError):
            return UndecodablePayload(text)
        return PayloadMismatch(text)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # inspect.Signature.bind does the same in ten times the time, and its messages name no task.
        if len(args) > len(self._positional):
            self._reject(f"takes {len(self._positional)} arguments by position, {len(args)} were given{self._takes()}")
        bound = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                if any(name == resource_name for resource_name, _ in self.injected.resources):
                    self._reject(f"argument {name!r} is a resource, which the worker opens; leave it out")
                self._reject(f"unexpected argument {name!r}{self._takes()}{_option_hint(name)}")
            if name in bound:
                self._reject(f"argument {name!r} was given twice")
            bound[name] = value
        for name in self._required:
            if name not in bound:
                self._reject(f"missing argument {name!r}{self._context_hint}")
        return bound

    def _reject(self, reason: str) -> NoReturn:
        raise InvalidJob(f"task {self.task!r}: {reason}")

    def _takes(self) -> str:
        return f"; it takes: {', '.join(self.names)}" if self.names else "; it takes no arguments"


def _option_hint(argument: str) -> str:
    """Return how to pass an option of the job that was passed as an argument of its task."""
    if (advice := find_advice(argument, OPTIONS)) is not None:
        return f"; {advice}"
    options = [argument] if argument in OPTIONS else find_equivalents(argument, OPTIONS)
    shown = " or ".join(f"{option}=…" for option in options)
    return f". Options of a job: task.options({shown}).enqueue(…)" if shown else ""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that is part of the payload."""

    name: str
    annotation: Any
    default: Any
    by_position: bool


class InjectedParameters(msgspec.Struct, frozen=True):
    """Names of the parameters that the worker supplies."""

    context: str | None = None
    helpers: str | None = None
    resources: tuple[tuple[str, Resource], ...] = ()
    has_sync_context: bool = False
    """The context is a ``SyncContext``."""


def shape_of(function: Callable[..., Any], task: str, *, positional: bool = False, poison: bool = False) -> Shape:
    """Return the shape of a function. Raises ConfigurationError if it cannot be a task."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigurationError(
            f"the parameters of {function!r} cannot be read; wrap it in a Python function"
        ) from None
    resources = tuple(_resources(function, signature))
    resource_names = {name for name, _ in resources}
    ordinary_parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name not in resource_names
    ]
    by_position: tuple[str, ...] = ()
    if positional:
        by_position, ordinary_parameters = _passed_by_position(ordinary_parameters)
    annotated = [(parameter, _annotation(function, parameter)) for parameter in ordinary_parameters]
    for parameter, _ in annotated:
        _refuse_kind(parameter, by_position)
    injected = msgspec.structs.replace(_injected(annotated, positional=positional), resources=resources)
    parameters = [
        Parameter(
            parameter.name,
            Any if annotation is inspect.Parameter.empty else annotation,
            ABSENT if parameter.default is inspect.Parameter.empty else parameter.default,
            parameter.kind in _POSITIONAL_KINDS,
        )
        for parameter, annotation in annotated
        if parameter.name not in (injected.context, injected.helpers)
    ]
    if positional and len(parameters) > 1:
        raise ConfigurationError(
            f"takes {', '.join(parameter.name for parameter in parameters)};"
            " a task in a folder takes (payload) or (payload, helpers)"
        )
    whole = parameters[0].name if len(parameters) == 1 and (positional or parameters[0].name == "payload") else None
    return Shape(task, parameters, whole=whole, injected=injected, poison=poison, by_position=by_position)


def _passed_by_position(
    parameters: list[inspect.Parameter],
) -> tuple[tuple[str, ...], list[inspect.Parameter]]:
    """Return the names of the positional-only arguments, and the parameters without ``*`` and ``**``.

    The call is ``(payload, helpers)``. A ``*args`` takes those of the two that the parameters before it do not take.
    """
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL_KINDS]
    is_positional_only = any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in positional)
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        remaining_names = ("payload", "helpers")[len(positional) :]
        positional += [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in remaining_names]
        is_positional_only = True
    keyword_parameters = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    if not positional:  # a ** alone takes nothing by position, and is refused
        keyword_parameters += [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD]
    names = tuple(parameter.name for parameter in positional) if is_positional_only else ()
    return names, positional + keyword_parameters


def _resources(function: Callable[..., Any], signature: inspect.Signature) -> Iterator[tuple[str, Resource]]:
    for parameter in signature.parameters.values():
        if not isinstance(parameter.default, Resource):
            continue
        where = f"parameter {parameter.name!r}"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ConfigurationError(f"{where}: a resource must be keyword-only; write it after a *")
        try:
            is_asynchronous = parameter.default.is_async()
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: resource {error}") from None
        if is_asynchronous and not is_async(function):
            raise ConfigurationError(
                f"{where}: resource {parameter.default.name} is opened asynchronously, so a def task cannot use it;"
                " write async def, or use a synchronous context manager"
            )
        yield parameter.name, parameter.default


def _injected(annotated: list[tuple[inspect.Parameter, Any]], *, positional: bool) -> InjectedParameters:
    context = helpers = None
    is_synchronous = False
    for index, (parameter, annotation) in enumerate(annotated):
        if annotation in (Context, SyncContext):
            context = parameter.name
            is_synchronous = annotation is SyncContext
        elif annotation in (Helpers, BlockingHelpers) or (
            annotation in (inspect.Parameter.empty, Any)
            and ((positional and index == 1) or (parameter.name == "helpers" and annotated[0][0].name == "payload"))
        ):
            helpers = parameter.name
    return InjectedParameters(context, helpers, has_sync_context=is_synchronous)


_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "a payload names its arguments; take a list instead",
    inspect.Parameter.VAR_KEYWORD: "name the parameters, or take the whole object as one called 'payload'",
    inspect.Parameter.POSITIONAL_ONLY: "positional-only; a payload names its arguments",
}


def _refuse_kind(parameter: inspect.Parameter, by_position: tuple[str, ...]) -> None:
    if parameter.kind in _REFUSED_KINDS and parameter.name not in by_position:
        raise ConfigurationError(f"parameter {parameter}: {_REFUSED_KINDS[parameter.kind]}")


def returned_annotation(function: Callable[..., Any]) -> Any:
    """Return the return annotation; ``Any`` if there is none, or it cannot be resolved."""
    annotation = getattr(innermost_function(function), "__annotations__", {}).get("return", Any)
    try:
        return _resolved(function, "return", annotation)
    except Exception:  # noqa: BLE001 - boundary: an annotation may be anything, and a result is readable without
        return Any


def _resolved(function: Callable[..., Any], name: str, annotation: object) -> Any:
    inner = innermost_function(function)
    inner = getattr(inner, "__func__", inner)
    closure = _closure(inner) if inspect.isfunction(inner) else {}
    holder = type("Holder", (), {"__annotations__": {name: annotation}})
    scope = getattr(inner, "__globals__", {})
    return get_type_hints(holder, globalns=scope, localns=closure, include_extras=True)[name]


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Resolve the annotation of one parameter. An unresolvable return type does not matter here."""
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    try:
        return _resolved(function, parameter.name, parameter.annotation)
    except NameError as error:
        raise ConfigurationError(
            f"parameter {parameter.name!r}: annotation {parameter.annotation!r} cannot be resolved ({error});"
            " define or import it at the top of the module, and not under TYPE_CHECKING"
        ) from None


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the names of the enclosing function. Some may have no value yet."""
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            values[name] = cell.cell_contents
    return values


def _decoder_for(parameters: list[Parameter], whole: str | None) -> msgspec.json.Decoder[Any]:
    for parameter in parameters:
        try:
            is_custom = isinstance(msgspec.inspect.type_info(parameter.annotation), msgspec.inspect.CustomType)
            if is_custom and not _is_pydantic(parameter.annotation):
                raise TypeError("JSON cannot be read as this type")
        except TypeError as error:
            raise ConfigurationError(
                f"parameter {parameter.name!r}: {parameter.annotation!r}: {error}; take plain values, a dataclass,"
                " a TypedDict, or a msgspec or pydantic model"
            ) from None
    if whole is not None:
        return msgspec.json.Decoder(parameters[0].annotation, dec_hook=read_other)
    # The struct has no defaults: ABSENT means "not in the payload", and the function's own default applies.
    ordered = sorted(parameters, key=lambda parameter: parameter.default is not ABSENT)
    fields = [
        (parameter.name, parameter.annotation)
        if parameter.default is ABSENT
        else (parameter.name, parameter.annotation, ABSENT)
        for parameter in ordered
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True), dec_hook=read_other)


def _context_hint(parameters: list[Parameter]) -> str:
    """Return a hint if the first parameter looks like a Context without annotation."""
    if not parameters or parameters[0].name not in ("ctx", "context") or parameters[0].annotation is not Any:
        return ""
    name = parameters[0].name
    return f"; the worker passes {name!r} only if it is annotated: `{name}: Context`"


def _remedy(name: str, loss: TypeLoss) -> str:
    kind = type(loss.value)
    if issubclass(kind, dict):
        return f"use {loss.decoded_type}"
    if loss.path:
        return f"annotate {name!r} with a type that has it, or pass {loss.decoded_type}"
    return f"annotate `{name}: {f'dict[{kind.__qualname__}, …]' if loss.is_key else kind.__qualname__}`"


def _allows_any(annotation: Any) -> bool:
    """Return whether some part of the type may be of any type. A pydantic model knows the types of its fields."""
    seen: set[type] = set()

    def allows_any(part: Any) -> bool:
        if isinstance(part, msgspec.inspect.AnyType):
            return True
        model = getattr(part, "cls", None)
        if model in seen:
            return False
        if model is not None:
            seen.add(model)
        single = [
            getattr(part, name) for name in ("type", "item_type", "key_type", "value_type") if hasattr(part, name)
        ]
        several = [*getattr(part, "item_types", ()), *getattr(part, "types", ()), *getattr(part, "fields", ())]
        return any(map(allows_any, single + several))

    return allows_any(msgspec.inspect.type_info(annotation))


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__")


def read_other(kind: Any, value: Any) -> Any:
    """Read a pydantic model, which msgspec cannot read, with its ``model_validate_json``."""
    if not _is_pydantic(kind):
        raise ValueError(f"a {getattr(kind, '__qualname__', kind)} cannot be read from JSON")
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        details = error.errors(include_url=False) if hasattr(error, "errors") else []
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details[:3]]
        raise ValueError("; ".join(problems) or str(error)) from None
