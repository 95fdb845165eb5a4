"""``@job`` registers a function as a handler and gives it an ``enqueue`` method."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, wraps
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from cronjobs.engine.jobs.async_targets import AsyncTargetOrEngine
from cronjobs.engine.jobs.checking import (
    LONGEST_TIMEOUT,
    for_handler,
    name_fault,
    names_checked,
    no_such_argument,
    require_target,
    type_fault,
)
from cronjobs.engine.jobs.enqueue import (
    Enqueued,
    EnqueueOptions,
    TargetOrEngine,
    enqueue,
    enqueue_async,
)
from cronjobs.errors import PayloadError, UsageError
from cronjobs.loading import Loading
from cronjobs.model import (
    LEAST_MEMORY,
    Durable,
    Isolation,
    JobOptions,
    OnLost,
    OnShutdown,
    RetryPolicy,
    WrongPolicy,
    duration,
    duration_text,
    size,
)
from cronjobs.text import error_text

if TYPE_CHECKING:
    from cronjobs.engine.jobs.context import Context
    from cronjobs.engine.jobs.handler_payload import HandlerPayload
    from cronjobs.engine.rules.annotations import Misfits

Handler = Callable[..., Any]
C = ParamSpec("C")  # the function's parameters
P = ParamSpec("P")  # the same parameters without ctx. They make up the payload
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# A handler that passes its payload on to another function, as a Django task does, has this attribute. Its value is a
# function. Given a payload whose names fit the handler, it returns why the payload does not fit the other function, or
# None.
INNER_FAULT: Final = "cronjobs_inner_fault"


def signature_of(function: Handler) -> inspect.Signature:
    """Return the signature of *function*. Raises whatever the evaluation of the annotations raises."""
    # Python 3.14 evaluates annotations when the signature is read. Leave names that only type checkers know as they
    # are.
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


@dataclass(frozen=True)
class Registration:
    """A handler and its ``@job`` options. If ``retry`` is None, the configuration's defaults apply."""

    name: str
    handler: Handler
    retry: RetryPolicy | None = None
    options: JobOptions = field(default_factory=JobOptions)
    # If False, only the names in the payload are checked. The handler gets the payload's values unchanged.
    check_types: bool = True

    @cached_property
    def signature(self) -> inspect.Signature:
        return signature_of(self.handler)

    @cached_property
    def takes_ctx(self) -> bool:
        return next(iter(self.signature.parameters), None) == "ctx"

    @cached_property
    def fault(self) -> str | None:
        """The reason why the function cannot be a handler, or None.

        ``@job`` does not raise an error for this fault, because then the import of the whole module would fail.
        """
        call = getattr(self.handler, "__call__", None)  # noqa: B004 the handler may be an object with a __call__ method
        for function in (self.handler, call):
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                return (
                    "the handler is a generator (it has a yield), so calling it does not run its body: "
                    "remove the yield, or make the handler an ordinary function that loops over the generator"
                )
        try:
            return self.accepts.fault
        except Exception as error:
            return f"the signature of its handler cannot be read: {error_text(error)}"

    @cached_property
    def accepts(self) -> HandlerPayload:
        # Imported only here, because a tick that only runs commands does not need HandlerPayload.
        from cronjobs.engine.jobs.handler_payload import HandlerPayload

        return HandlerPayload(self.handler, self.signature, takes_ctx=self.takes_ctx, typed=self.check_types)

    @cached_property
    def source(self) -> str | None:
        """A hash of the handler's source code, or None if the source cannot be read.

        If two hosts have the same hash, they run the same code.
        """
        # Imported only here, because only types that run on a cluster need it.
        from hashlib import sha256

        try:
            return sha256(inspect.getsource(inspect.unwrap(self.handler)).encode()).hexdigest()[:32]
        except (OSError, TypeError, ValueError):
            return None

    def bind(self, payload: Mapping[str, Any]) -> str | None:
        """Return why *payload* does not fit the handler's parameters, by name or by type, or None if it fits."""
        return self.bind_names(payload) or self.type_fault(self.decoded(payload)[1])

    def bind_names(self, payload: Mapping[str, Any]) -> str | None:
        """Return why *payload*'s keys do not fit the handler's parameters, or None if they fit."""
        try:
            if not self.accepts.takes_names(payload.keys()):
                self.signature.bind(*([None] if self.takes_ctx else []), **payload)
        # Catch more than TypeError, because the signature of a callable object may be unreadable.
        except Exception as error:
            unknown = self.accepts.first_unknown(payload) if "missing a required" in str(error) else ""
            also = f", and got an unexpected keyword argument {unknown!r}" if unknown else ""
            return f"payload does not fit {self.name}{self._shown_signature}: {error}{also}"
        inner = getattr(self.handler, INNER_FAULT, None)
        return None if inner is None else inner(payload)

    def decoded(self, payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Misfits]:
        """Return the handler's arguments for *payload*, whose names must fit, and the values that do not fit."""
        return self.accepts.decode(payload)

    def encoded(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *payload*, whose values may have the annotated types, as JSON. Raises PayloadError."""
        if self.fault is not None:
            # The handler cannot run here, so its payload cannot be checked here either.
            return payload
        if self.accepts.takes_as_it_is(payload) and not hasattr(self.handler, INNER_FAULT):
            return payload
        fault, encoded = self.bind_names(payload), payload
        if fault is None:
            encoded, misfits = self.accepts.encode(payload)
            fault = self.type_fault(misfits)
        if fault is not None:
            raise PayloadError(fault)
        return encoded

    def type_fault(self, misfits: Misfits) -> str | None:
        return f"payload does not fit {self.name}: {misfits}" if misfits.count else None

    @cached_property
    def _shown_signature(self) -> str:
        try:
            return str(self.signature).replace("cronjobs.engine.jobs.context.Context", "cronjobs.Context")
        # The repr of a default value may raise anything.
        except Exception:
            return "(…)"

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without ctx. Raises TypeError if the call itself would."""
        try:
            bound = self.signature.bind(*([None] if self.takes_ctx else []), *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None
        payload: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            match self.signature.parameters[name].kind:
                case inspect.Parameter.VAR_KEYWORD:
                    payload |= value
                case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                    raise TypeError(
                        f"{self.name}{self.signature}: a payload passes arguments by name, and {name} cannot be passed "
                        "by name"
                    )
                case _:
                    payload[name] = value
        if self.takes_ctx:
            del payload["ctx"]
        return payload


# The value of *target* if a call passes no target, so that we can raise our own error.
_NOWHERE: Final[Any] = None


class Enqueueing(Generic[P]):
    """Enqueues jobs of one type. Its methods take the handler's own arguments, without ``ctx``."""

    def __init__(self, registration: Registration, options: EnqueueOptions) -> None:
        self._registration, self._options = registration, options

    def enqueue(self, target: TargetOrEngine = _NOWHERE, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue in *target*'s transaction. Raises TypeError for arguments that the handler does not accept."""
        require_target(target, "enqueue")
        payload = self._registration.payload(args, kwargs)
        return enqueue(target, self._registration.name, payload, **self._options)

    async def enqueue_async(
        self, target: AsyncTargetOrEngine = _NOWHERE, /, *args: P.args, **kwargs: P.kwargs
    ) -> Enqueued:
        """Like ``enqueue``, in the transaction of an async target."""
        require_target(target, "enqueue_async")
        payload = self._registration.payload(args, kwargs)
        return await enqueue_async(target, self._registration.name, payload, **self._options)


class JobFunction(Protocol[C, P, R_co]):
    """A function decorated with ``@job``. You call it as before, and it has methods that enqueue it.

    For example ``send_invoice.enqueue(session, invoice_id=42)``. To set options that are not arguments of the handler:
    ``send_invoice.options(delay="5m", queue="mail").enqueue(session, invoice_id=42)``.
    """

    __name__: str
    __qualname__: str

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co: ...

    def enqueue(self, target: TargetOrEngine, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...

    async def enqueue_async(self, target: AsyncTargetOrEngine, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...

    def options(self, **options: Unpack[EnqueueOptions]) -> Enqueueing[P]: ...


class Register(Protocol):
    """The type of ``@job(…)``'s result. It accepts functions with and without ``ctx`` as the first parameter."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], R], /
    ) -> JobFunction[Concatenate[Context, P], P, R]: ...

    @overload
    def __call__(self, handler: Callable[P, R], /) -> JobFunction[P, P, R]: ...


_registered: dict[str, Registration] = {}
# For each job type, the module that registered it, or None if that module is not in ``sys.modules``.
_modules: dict[str, ModuleType | None] = {}
# For each job type, what is wrong with its ``@job``. If the type's name is unknown, the key is the function's name.
_refused: dict[str, str] = {}
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _fault_of_its_type(job: _Decorated) -> _Decorated:
    @wraps(job)
    def checked(*args: Any, **kwargs: Any) -> Any:
        name = args[0] if args else kwargs.get("name")
        type_name = name if isinstance(name, str) else repr(name)
        try:
            register = job(*args, **kwargs)
        except (UsageError, TypeError) as error:
            if not Loading.depth:
                raise
            said = str(error)
            # @job was written without parentheses, so *name* is the function.
            if callable(name):
                return _refuse(name, _place(name), said)
            return lambda handler: _refuse(handler, type_name, said)

        def registered(handler: Handler) -> Handler:
            try:
                return cast("Handler", register(handler))
            except UsageError as error:
                if not Loading.depth:
                    raise
                return _refuse(handler, type_name, str(error))

        return registered

    return cast("_Decorated", checked)


def _place(handler: Handler) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', handler)}"


def _refuse(handler: Handler, name: str, said: str) -> Handler:
    _refused[name] = said
    return handler


def refused() -> Mapping[str, str]:
    """Return the job types that ``@job`` has refused in this process, each with the reason for the refusal."""
    return _refused


@_fault_of_its_type
@names_checked("job")
def job(
    name: str,
    *,
    timeout: timedelta | str | float | None = None,
    retry: RetryPolicy | None = None,
    isolation: Isolation | None = None,
    max_memory: int | str | None = None,
    on_shutdown: OnShutdown | None = None,
    on_lost: OnLost | None = None,
    durable: Durable | None = None,
    check_types: bool = True,
    executor: str | None = None,
) -> Register:
    """Register the decorated function as the handler of job type *name*.

    You can still call the function directly. To enqueue it, call its ``.enqueue`` or ``.enqueue_async``, or
    ``.options(…).enqueue`` if the job needs other options (JobFunction shows examples).

    ``timeout``: "20s", seconds or a timedelta; the default is min(30s, budget / 3). A job whose timeout is longer than
    ``run.budget`` minus 5 s is a long job, which gets a process of its own. (If the budget is below 15 s, a job is long
    if its timeout is above two thirds of the budget.) Without ``retry`` the configuration's defaults apply.
    ``isolation``: "thread" (the default) or "process". A process can always be stopped, and its memory can be limited
    with ``max_memory`` ("512MiB", or bytes). ``on_shutdown`` decides what happens to a job that a stopping tick has
    claimed but not started: "release" (the default) leaves the job for the next tick, "drop" cancels it. ``on_lost``
    decides what happens to a job whose runner died: "retry" (the default), or "dead" for work that must not be repeated
    automatically. ``durable`` decides when an outcome is committed: "group" (the default) commits it together with
    other outcomes, "each" commits it before the worker starts another job. ``executor`` names the entry of the file's
    ``executors:`` whose cluster runs the handler; without it, the tick's host runs the handler. The file's
    ``job_types:`` override all of these options. With ``check_types=False`` the handler gets the payload's values as
    JSON, whatever its annotations say. Raises UsageError if another function already has the name, or an option is
    invalid.
    """
    given_name: Any = name
    if callable(given_name):
        called = getattr(given_name, "__name__", "name")
        raise UsageError(f'the @job above {called} has no parentheses: write @job("app.{called}")')
    fault = type_fault(name)
    if fault:
        raise UsageError(f"@job({name!r}): the name {fault}")
    given_retry: Any = retry
    if retry is not None and not isinstance(given_retry, RetryPolicy):
        fields = given_retry.items() if isinstance(given_retry, Mapping) else ()
        written = ", ".join(f"{key}={value!r}" for key, value in fields) or "…"
        raise UsageError(f"@job({name!r}): retry {retry!r} is not a policy: write retry=RetryPolicy({written})")
    if isinstance(retry, WrongPolicy):
        raise UsageError(f"@job({name!r}): retry: {retry.fault}")
    if not isinstance(check_types, bool):
        raise UsageError(f"@job({name!r}): check_types {check_types!r} is neither True nor False")
    limit = _read(name, "timeout", timeout, duration)
    if limit is not None and limit <= timedelta(0):
        raise UsageError(f"@job({name!r}): timeout must be above zero")
    if limit is not None and limit > LONGEST_TIMEOUT:
        raise UsageError(f"@job({name!r}): timeout {timeout!r} is above {duration_text(LONGEST_TIMEOUT)}")
    for what, value, words in (
        ("isolation", isolation, get_args(Isolation)),
        ("on_shutdown", on_shutdown, get_args(OnShutdown)),
        ("on_lost", on_lost, get_args(OnLost)),
        ("durable", durable, get_args(Durable)),
    ):
        if value is not None and value not in words:
            raise UsageError(f"@job({name!r}): {what} {value!r} is not one of {', '.join(words)}")
    memory = _read(name, "max_memory", max_memory, size)
    if memory is not None and memory < size(LEAST_MEMORY):
        raise UsageError(f"@job({name!r}): max_memory {max_memory!r} is below {LEAST_MEMORY}")
    if executor is not None and (name_fault(executor) is not None or isolation == "thread"):
        why = name_fault(executor) or 'is a cluster, where a handler always has a process: omit isolation="thread"'
        raise UsageError(f"@job({name!r}): executor {executor!r} {why}")
    if memory is not None and isolation != "process" and executor is None:
        raise UsageError(f'@job({name!r}): max_memory needs a process: write isolation="process" too')
    given = JobOptions(
        timeout=limit,
        isolation=isolation,
        max_memory=memory,
        on_shutdown=on_shutdown,
        on_lost=on_lost,
        durable=durable,
        executor=executor,
    )

    def register(handler: Handler) -> Handler:
        there = _registered.get(name)
        if there and _place(there.handler) != _place(handler):
            raise UsageError(f"@job({name!r}) is registered twice: by {_place(there.handler)} and by {_place(handler)}")
        _refused.pop(name, None)
        _registered[name] = Registration(name, handler, retry, given, check_types)
        _modules[name] = sys.modules.get(handler.__module__)
        _give_enqueue(_registered[name])
        return handler

    return cast("Register", register)


def _give_enqueue(registration: Registration) -> None:
    def options(**options: Unpack[EnqueueOptions]) -> Enqueueing[...]:
        """Return an object whose methods enqueue jobs with these options of ``enqueue``."""
        if not EnqueueOptions.__annotations__.keys() >= options.keys():
            raise no_such_argument("options", options, EnqueueOptions.__annotations__.keys())
        return Enqueueing(registration, options)

    handler: Any = registration.handler
    plain: Enqueueing[...] = options()
    # A callable object may not allow new attributes.
    with suppress(AttributeError, TypeError):
        handler.enqueue, handler.enqueue_async, handler.options = plain.enqueue, plain.enqueue_async, options


def _read(name: str, what: str, value: Any, read: Callable[[Any], R]) -> R | None:
    try:
        return None if value is None else read(value)
    except ValueError as error:
        raise UsageError(f"@job({name!r}): {what}: {error}") from None


def _encoded(job_type: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    registration = _registered.get(job_type)
    return payload if registration is None else registration.encoded(payload)


for_handler.encoded = _encoded


def registered() -> Mapping[str, Registration]:
    """Return all handlers that ``@job`` has registered in this process."""
    return _registered


def half_imported() -> dict[str, str]:
    """Return the job types whose module raised an exception while it was imported, each with the name of that module.

    The handler of such a type may use names that do not exist. If the import of a module fails, Python removes the
    module from ``sys.modules``. So we can detect such a module.
    """
    return {
        name: module.__name__
        for name, module in _modules.items()
        if module is not None and sys.modules.get(module.__name__) is not module
    }
