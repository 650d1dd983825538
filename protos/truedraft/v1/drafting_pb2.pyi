from truedraft.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_LENGTH: _ClassVar[StopReason]
    STOP_REASON_EXHAUSTED: _ClassVar[StopReason]

class FaultCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_CODE_UNSPECIFIED: _ClassVar[FaultCode]
    FAULT_CODE_PROTOCOL_VERSION: _ClassVar[FaultCode]
    FAULT_CODE_TOKENIZER_MISMATCH: _ClassVar[FaultCode]
    FAULT_CODE_VOCABULARY_MISMATCH: _ClassVar[FaultCode]
    FAULT_CODE_UNKNOWN_SEQUENCE: _ClassVar[FaultCode]
    FAULT_CODE_PREFIX_MISMATCH: _ClassVar[FaultCode]
    FAULT_CODE_UNSUPPORTED_LAW: _ClassVar[FaultCode]
    FAULT_CODE_DRAFTER_FAILED: _ClassVar[FaultCode]
    FAULT_CODE_INVALID_MESSAGE: _ClassVar[FaultCode]
    FAULT_CODE_FEATURES_MISMATCH: _ClassVar[FaultCode]
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_LENGTH: StopReason
STOP_REASON_EXHAUSTED: StopReason
FAULT_CODE_UNSPECIFIED: FaultCode
FAULT_CODE_PROTOCOL_VERSION: FaultCode
FAULT_CODE_TOKENIZER_MISMATCH: FaultCode
FAULT_CODE_VOCABULARY_MISMATCH: FaultCode
FAULT_CODE_UNKNOWN_SEQUENCE: FaultCode
FAULT_CODE_PREFIX_MISMATCH: FaultCode
FAULT_CODE_UNSUPPORTED_LAW: FaultCode
FAULT_CODE_DRAFTER_FAILED: FaultCode
FAULT_CODE_INVALID_MESSAGE: FaultCode
FAULT_CODE_FEATURES_MISMATCH: FaultCode

class DraftRequest(_message.Message):
    __slots__ = ("hello", "messages")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    messages: _containers.RepeatedCompositeFieldContainer[VerifierMessage]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[VerifierMessage, _Mapping]]] = ...) -> None: ...

class VerifierMessage(_message.Message):
    __slots__ = ("open", "plan", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    plan: Plan
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("welcome", "fault", "messages")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    fault: Fault
    messages: _containers.RepeatedCompositeFieldContainer[DrafterMessage]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[DrafterMessage, _Mapping]]] = ...) -> None: ...

class DrafterMessage(_message.Message):
    __slots__ = ("block", "forecast", "fault", "leaving")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    block: Block
    forecast: Forecast
    fault: Fault
    leaving: Leaving
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., forecast: _Optional[_Union[Forecast, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "tokenizer_hash", "vocab_size", "target_model", "target_revision", "verifier_replica", "feature_layers", "projection_digest", "feature_dtype")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    TARGET_REVISION_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FEATURE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    tokenizer_hash: str
    vocab_size: int
    target_model: str
    target_revision: str
    verifier_replica: str
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    projection_digest: str
    feature_dtype: str
    def __init__(self, protocol_version: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., target_model: _Optional[str] = ..., target_revision: _Optional[str] = ..., verifier_replica: _Optional[str] = ..., feature_layers: _Optional[_Iterable[int]] = ..., projection_digest: _Optional[str] = ..., feature_dtype: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "drafter_model", "drafter_revision", "drafter_kind", "drafter_replica", "incarnation", "context", "certain", "longest", "fed", "stream", "foresees", "repeats")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_KIND_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CERTAIN_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FORESEES_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    drafter_model: str
    drafter_revision: str
    drafter_kind: str
    drafter_replica: str
    incarnation: int
    context: int
    certain: bool
    longest: int
    fed: bool
    stream: int
    foresees: bool
    repeats: int
    def __init__(self, protocol_version: _Optional[int] = ..., drafter_model: _Optional[str] = ..., drafter_revision: _Optional[str] = ..., drafter_kind: _Optional[str] = ..., drafter_replica: _Optional[str] = ..., incarnation: _Optional[int] = ..., context: _Optional[int] = ..., certain: _Optional[bool] = ..., longest: _Optional[int] = ..., fed: _Optional[bool] = ..., stream: _Optional[int] = ..., foresees: _Optional[bool] = ..., repeats: _Optional[int] = ...) -> None: ...

class FeedRequest(_message.Message):
    __slots__ = ("stream", "sequence", "epoch", "start", "rows")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    sequence: int
    epoch: int
    start: int
    rows: bytes
    def __init__(self, stream: _Optional[int] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class FeedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Open(_message.Message):
    __slots__ = ("sequence", "epoch", "prompt_ids", "sampling", "law", "noise_key", "proposal_entries")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LAW_FIELD_NUMBER: _ClassVar[int]
    NOISE_KEY_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _inference_pb2.Sampling
    law: str
    noise_key: int
    proposal_entries: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_inference_pb2.Sampling, _Mapping]] = ..., law: _Optional[str] = ..., noise_key: _Optional[int] = ..., proposal_entries: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("sequence", "epoch", "plan_id", "base_committed_len", "committed_ids", "prefix_hash", "block_length", "traceparent", "stop_below", "ahead_length", "held", "width")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    AHEAD_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    plan_id: int
    base_committed_len: int
    committed_ids: _containers.RepeatedScalarFieldContainer[int]
    prefix_hash: bytes
    block_length: int
    traceparent: str
    stop_below: float
    ahead_length: int
    held: bool
    width: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., plan_id: _Optional[int] = ..., base_committed_len: _Optional[int] = ..., committed_ids: _Optional[_Iterable[int]] = ..., prefix_hash: _Optional[bytes] = ..., block_length: _Optional[int] = ..., traceparent: _Optional[str] = ..., stop_below: _Optional[float] = ..., ahead_length: _Optional[int] = ..., held: _Optional[bool] = ..., width: _Optional[int] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("sequence", "epoch", "plan_id", "incarnation", "prefix_hash", "ids", "max_q", "stop_reason", "draft_time_ns", "traceparent", "proposal_entries", "proposal_ids", "proposal_probs", "parents")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_Q_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_IDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_PROBS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    plan_id: int
    incarnation: int
    prefix_hash: bytes
    ids: _containers.RepeatedScalarFieldContainer[int]
    max_q: _containers.RepeatedScalarFieldContainer[float]
    stop_reason: StopReason
    draft_time_ns: int
    traceparent: str
    proposal_entries: int
    proposal_ids: bytes
    proposal_probs: bytes
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., plan_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., prefix_hash: _Optional[bytes] = ..., ids: _Optional[_Iterable[int]] = ..., max_q: _Optional[_Iterable[float]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., draft_time_ns: _Optional[int] = ..., traceparent: _Optional[str] = ..., proposal_entries: _Optional[int] = ..., proposal_ids: _Optional[bytes] = ..., proposal_probs: _Optional[bytes] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("sequence", "epoch", "plan_id", "incarnation", "outcomes", "exhaustive", "draft_time_ns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTIVE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    plan_id: int
    incarnation: int
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    exhaustive: bool
    draft_time_ns: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., plan_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., exhaustive: _Optional[bool] = ..., draft_time_ns: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("prefix_hash", "ids", "max_q")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_Q_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: bytes
    ids: _containers.RepeatedScalarFieldContainer[int]
    max_q: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prefix_hash: _Optional[bytes] = ..., ids: _Optional[_Iterable[int]] = ..., max_q: _Optional[_Iterable[float]] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("sequence", "epoch", "reason")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    reason: str
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fault(_message.Message):
    __slots__ = ("code", "detail", "sequence", "epoch", "plan_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    code: FaultCode
    detail: str
    sequence: int
    epoch: int
    plan_id: int
    def __init__(self, code: _Optional[_Union[FaultCode, str]] = ..., detail: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., plan_id: _Optional[int] = ...) -> None: ...
