// Made from sdk/abi.txt by tests/abi.rs (CHASSIS_RECORD=1 cargo test -p chassis-sys). Sizes, offsets and values are
// those of the C headers, which have the comments.
use crate::Growable;
use core::ffi::c_void;

pub const CHASSIS_ABI_MAJOR: u32 = 0;
pub const CHASSIS_ABI_MINOR: u32 = 20;
pub const CHASSIS_ABI_OLDEST_MINOR: u32 = 20;
pub const CHASSIS_ABORTED: u32 = 10;
pub const CHASSIS_ABSENT: u32 = 4294967295;
pub const CHASSIS_ADAPTER_BASE_V1_SIZE: u32 = 40;
pub const CHASSIS_ADAPTER_BUILDER_V1_SIZE: u32 = 40;
pub const CHASSIS_ADAPTER_FILES_V1_SIZE: u32 = 48;
pub const CHASSIS_ADAPTER_ID: &str = "chassis.adapter/1";
pub const CHASSIS_ADAPTER_MERGE_V1_SIZE: u32 = 112;
pub const CHASSIS_ADAPTER_OP_V1_SIZE: u32 = 184;
pub const CHASSIS_ADAPTER_PARAMETER_V1_SIZE: u32 = 96;
pub const CHASSIS_ADAPTER_PART_V1_SIZE: u32 = 88;
pub const CHASSIS_ADAPTER_TENSOR_V1_SIZE: u32 = 40;
pub const CHASSIS_ADAPTER_V1_SIZE: u32 = 64;
pub const CHASSIS_ALREADY_EXISTS: u32 = 6;
pub const CHASSIS_ATTR_FLOAT: u32 = 2;
pub const CHASSIS_ATTR_FLOAT_LIST: u32 = 5;
pub const CHASSIS_ATTR_INT: u32 = 1;
pub const CHASSIS_ATTR_INT_LIST: u32 = 4;
pub const CHASSIS_ATTR_STRING: u32 = 3;
pub const CHASSIS_BETTER_HIGHER: u32 = 1;
pub const CHASSIS_BETTER_LOWER: u32 = 2;
pub const CHASSIS_BETTER_NEITHER: u32 = 0;
pub const CHASSIS_BOXED_BOOL: u32 = 4;
pub const CHASSIS_BOXED_BOOL_LIST: u32 = 8;
pub const CHASSIS_BOXED_DTYPE: u32 = 10;
pub const CHASSIS_BOXED_FLOAT: u32 = 3;
pub const CHASSIS_BOXED_FLOAT_LIST: u32 = 7;
pub const CHASSIS_BOXED_INT: u32 = 2;
pub const CHASSIS_BOXED_INT_LIST: u32 = 6;
pub const CHASSIS_BOXED_NONE: u32 = 0;
pub const CHASSIS_BOXED_STRING: u32 = 5;
pub const CHASSIS_BOXED_TENSOR: u32 = 1;
pub const CHASSIS_BOXED_TENSOR_LIST: u32 = 9;
pub const CHASSIS_BUILDER_V1_SIZE: u32 = 96;
pub const CHASSIS_CALL_TRAINING: u32 = 1;
pub const CHASSIS_CALL_V1_SIZE: u32 = 152;
pub const CHASSIS_CANCELLED: u32 = 1;
pub const CHASSIS_CHAT_GENERATION_PROMPT: u32 = 1;
pub const CHASSIS_CHAT_SINK_V1_SIZE: u32 = 32;
pub const CHASSIS_CHAT_SPANS: u32 = 2;
pub const CHASSIS_CHAT_SPAN_V1_SIZE: u32 = 32;
pub const CHASSIS_CHAT_V1_SIZE: u32 = 80;
pub const CHASSIS_CHECKSUM_CRC32: u32 = 1;
pub const CHASSIS_CHECKSUM_CRC32C: u32 = 0;
pub const CHASSIS_COLLECTIVE_V1_SIZE: u32 = 80;
pub const CHASSIS_COMM_ALL_GATHER: u32 = 1;
pub const CHASSIS_COMM_ALL_REDUCE: u32 = 3;
pub const CHASSIS_COMM_ALL_TO_ALL: u32 = 4;
pub const CHASSIS_COMM_BACKEND_ID: &str = "chassis.comm_backend/1";
pub const CHASSIS_COMM_BACKEND_V1_SIZE: u32 = 80;
pub const CHASSIS_COMM_BARRIER: u32 = 8;
pub const CHASSIS_COMM_BROADCAST: u32 = 5;
pub const CHASSIS_COMM_GROUP_DESC_V1_SIZE: u32 = 72;
pub const CHASSIS_COMM_ID: &str = "chassis.comm/1";
pub const CHASSIS_COMM_MOVES_NOTHING: u32 = 1;
pub const CHASSIS_COMM_RECV: u32 = 7;
pub const CHASSIS_COMM_REDUCE_SCATTER: u32 = 2;
pub const CHASSIS_COMM_ROUNDS_HALVES: u32 = 2;
pub const CHASSIS_COMM_SEND: u32 = 6;
pub const CHASSIS_COMM_V1_SIZE: u32 = 72;
pub const CHASSIS_COMPONENT_COLUMN: u32 = 1;
pub const CHASSIS_COMPONENT_NOT_IN_FILES: u32 = 2;
pub const CHASSIS_COMPONENT_V1_SIZE: u32 = 56;
pub const CHASSIS_CONTEXT_ALL_TO_ALL: u32 = 1;
pub const CHASSIS_CONTEXT_GATHER: u32 = 2;
pub const CHASSIS_CONTEXT_RING: u32 = 3;
pub const CHASSIS_COUNT_CHOSEN_TOKENS: u32 = 4;
pub const CHASSIS_COUNT_SEQUENCES: u32 = 2;
pub const CHASSIS_COUNT_TARGETS: u32 = 5;
pub const CHASSIS_COUNT_TOKENS: u32 = 3;
pub const CHASSIS_COUNT_UNITS: u32 = 1;
pub const CHASSIS_DATA_LOSS: u32 = 15;
pub const CHASSIS_DEADLINE_EXCEEDED: u32 = 4;
pub const CHASSIS_DECODE_KEEP_SPECIAL: u32 = 1;
pub const CHASSIS_DEVICE_CPU: u32 = 0;
pub const CHASSIS_DEVICE_CUDA: u32 = 1;
pub const CHASSIS_DEVICE_META: u32 = 2;
pub const CHASSIS_DIM_BATCH: u32 = 0;
pub const CHASSIS_DIM_TIME: u32 = 1;
pub const CHASSIS_DIRECTORY_V1_SIZE: u32 = 32;
pub const CHASSIS_DISK_PART_V1_SIZE: u32 = 40;
pub const CHASSIS_DISK_RULE_V1_SIZE: u32 = 48;
pub const CHASSIS_DISK_SINK_V1_SIZE: u32 = 48;
pub const CHASSIS_DISK_TENSOR_V1_SIZE: u32 = 64;
pub const CHASSIS_DISPATCH_ID: &str = "chassis.dispatch/1";
pub const CHASSIS_DISPATCH_V1_SIZE: u32 = 40;
pub const CHASSIS_DIVIDE_PAD: u32 = 1;
pub const CHASSIS_DIVISION_PROBLEM_V1_SIZE: u32 = 32;
pub const CHASSIS_DIVISION_SINK_V1_SIZE: u32 = 48;
pub const CHASSIS_DTYPE_BF16: u32 = 4;
pub const CHASSIS_DTYPE_BOOL: u32 = 10;
pub const CHASSIS_DTYPE_F16: u32 = 3;
pub const CHASSIS_DTYPE_F32: u32 = 1;
pub const CHASSIS_DTYPE_F64: u32 = 2;
pub const CHASSIS_DTYPE_I16: u32 = 7;
pub const CHASSIS_DTYPE_I32: u32 = 6;
pub const CHASSIS_DTYPE_I64: u32 = 5;
pub const CHASSIS_DTYPE_I8: u32 = 8;
pub const CHASSIS_DTYPE_U8: u32 = 9;
pub const CHASSIS_ENCODE_SPECIAL: u32 = 1;
pub const CHASSIS_ENTRY_SYMBOL: &str = "chassis_plugin_entry_v1";
pub const CHASSIS_EVENT_INPUTS_ONLY: u32 = 8;
pub const CHASSIS_EVENT_LAST_MICROBATCH: u32 = 2;
pub const CHASSIS_EVENT_PARAMS_ONLY: u32 = 16;
pub const CHASSIS_EVENT_RECOMPUTE: u32 = 1;
pub const CHASSIS_EVENT_TRAINING: u32 = 4;
pub const CHASSIS_FACTORY_V1_SIZE: u32 = 24;
pub const CHASSIS_FACT_CONFIG_KEY: &str = "config key";
pub const CHASSIS_FAILED_PRECONDITION: u32 = 9;
pub const CHASSIS_FILE_SINK_V1_SIZE: u32 = 24;
pub const CHASSIS_FINISH_SINK_V1_SIZE: u32 = 32;
pub const CHASSIS_FORMAT_ID: &str = "chassis.format/1";
pub const CHASSIS_FORMAT_V1_SIZE: u32 = 40;
pub const CHASSIS_GEMM_ID: &str = "chassis.gemm/1";
pub const CHASSIS_GEMM_PROBLEM_V1_SIZE: u32 = 104;
pub const CHASSIS_GEMM_TRANSPOSE_A: u32 = 1;
pub const CHASSIS_GEMM_TRANSPOSE_B: u32 = 2;
pub const CHASSIS_GEMM_V1_SIZE: u32 = 48;
pub const CHASSIS_GRANULARITY_BLOCK: u32 = 2;
pub const CHASSIS_GRANULARITY_ELEMENT: u32 = 1;
pub const CHASSIS_GRANULARITY_MATRIX: u32 = 3;
pub const CHASSIS_HOST_V1_SIZE: u32 = 64;
pub const CHASSIS_INFER_V1_SIZE: u32 = 280;
pub const CHASSIS_INIT_NORMAL: u32 = 3;
pub const CHASSIS_INIT_ONES: u32 = 2;
pub const CHASSIS_INIT_UNIFORM: u32 = 4;
pub const CHASSIS_INIT_ZEROS: u32 = 1;
pub const CHASSIS_INSTANCE_V1_SIZE: u32 = 64;
pub const CHASSIS_INTERNAL: u32 = 13;
pub const CHASSIS_INVALID_ARGUMENT: u32 = 3;
pub const CHASSIS_KERNEL_ADDS_GRAD_INPUTS: u32 = 2;
pub const CHASSIS_KERNEL_COMPOSED: u32 = 4;
pub const CHASSIS_KERNEL_FORWARD_BACKWARD: u32 = 8;
pub const CHASSIS_KERNEL_HOST_OUTPUTS: u32 = 1;
pub const CHASSIS_KERNEL_HOST_WORKSPACE: u32 = 16;
pub const CHASSIS_KERNEL_INNER_OUTPUTS: u32 = 64;
pub const CHASSIS_KERNEL_LOG_SUM: u32 = 32;
pub const CHASSIS_LAYOUT_SINK_V1_SIZE: u32 = 40;
pub const CHASSIS_LEAF_CONTENT: u32 = 1;
pub const CHASSIS_LEAF_GENERATION: u32 = 4;
pub const CHASSIS_LEAF_REASONING: u32 = 2;
pub const CHASSIS_LEAF_TOOL_CALLS: u32 = 3;
pub const CHASSIS_LITERAL_V1_SIZE: u32 = 48;
pub const CHASSIS_LOG_DEBUG: u32 = 1;
pub const CHASSIS_LOG_ERROR: u32 = 4;
pub const CHASSIS_LOG_ID: &str = "chassis.log/1";
pub const CHASSIS_LOG_INFO: u32 = 2;
pub const CHASSIS_LOG_V1_SIZE: u32 = 40;
pub const CHASSIS_LOG_WARN: u32 = 3;
pub const CHASSIS_MEMBERS_ID: &str = "chassis.members/1";
pub const CHASSIS_MEMBERS_V1_SIZE: u32 = 32;
pub const CHASSIS_MEMBER_V1_SIZE: u32 = 64;
pub const CHASSIS_MEMORY_ACTIVATIONS: u32 = 4;
pub const CHASSIS_MEMORY_CHECKPOINT: u32 = 7;
pub const CHASSIS_MEMORY_COMMUNICATION: u32 = 6;
pub const CHASSIS_MEMORY_DATA: u32 = 8;
pub const CHASSIS_MEMORY_GATHERED: u32 = 10;
pub const CHASSIS_MEMORY_GRADIENTS: u32 = 2;
pub const CHASSIS_MEMORY_ID: &str = "chassis.memory/1";
pub const CHASSIS_MEMORY_LOGITS: u32 = 9;
pub const CHASSIS_MEMORY_NUM_CATEGORIES: u32 = 11;
pub const CHASSIS_MEMORY_OPTIMIZER: u32 = 3;
pub const CHASSIS_MEMORY_OTHER: u32 = 0;
pub const CHASSIS_MEMORY_PARAMETERS: u32 = 1;
pub const CHASSIS_MEMORY_PINNED: u32 = 1;
pub const CHASSIS_MEMORY_V1_SIZE: u32 = 56;
pub const CHASSIS_MEMORY_WORKSPACE: u32 = 5;
pub const CHASSIS_METRICS_ID: &str = "chassis.metrics/1";
pub const CHASSIS_METRICS_V1_SIZE: u32 = 32;
pub const CHASSIS_MODEL_ID: &str = "chassis.model/1";
pub const CHASSIS_MODEL_V1_SIZE: u32 = 48;
pub const CHASSIS_NODE_TRAINING: u32 = 1;
pub const CHASSIS_NODE_V1_SIZE: u32 = 96;
pub const CHASSIS_NOTE_NAME: &str = "Chassis";
pub const CHASSIS_NOTE_SECTION: &str = ".note.chassis";
pub const CHASSIS_NOTE_TYPE: u32 = 1;
pub const CHASSIS_NOT_FOUND: u32 = 5;
pub const CHASSIS_OBJECTIVE_ANSWERS: u32 = 5;
pub const CHASSIS_OBJECTIVE_BATCH_V1_SIZE: u32 = 168;
pub const CHASSIS_OBJECTIVE_DESC_V1_SIZE: u32 = 80;
pub const CHASSIS_OBJECTIVE_GLOBAL: u32 = 2;
pub const CHASSIS_OBJECTIVE_ID: &str = "chassis.objective/1";
pub const CHASSIS_OBJECTIVE_LABELLED: u32 = 2;
pub const CHASSIS_OBJECTIVE_LOGPS: u32 = 1;
pub const CHASSIS_OBJECTIVE_MARGINS: u32 = 128;
pub const CHASSIS_OBJECTIVE_MISMATCH: u32 = 4;
pub const CHASSIS_OBJECTIVE_OLD_LOGPS: u32 = 16;
pub const CHASSIS_OBJECTIVE_PAIRS: u32 = 1;
pub const CHASSIS_OBJECTIVE_REFERENCE: u32 = 1;
pub const CHASSIS_OBJECTIVE_RESULT_V1_SIZE: u32 = 56;
pub const CHASSIS_OBJECTIVE_ROLLOUTS: u32 = 4;
pub const CHASSIS_OBJECTIVE_SCORES: u32 = 2;
pub const CHASSIS_OBJECTIVE_STOPPED_RATIO: u32 = 64;
pub const CHASSIS_OBJECTIVE_TEACHER: u32 = 32;
pub const CHASSIS_OBJECTIVE_TEXTS: u32 = 3;
pub const CHASSIS_OBJECTIVE_TOKENS: u32 = 8;
pub const CHASSIS_OBJECTIVE_V1_SIZE: u32 = 40;
pub const CHASSIS_OK: u32 = 0;
pub const CHASSIS_OPERAND_V1_SIZE: u32 = 64;
pub const CHASSIS_OPS_ID: &str = "chassis.ops/1";
pub const CHASSIS_OPS_V1_SIZE: u32 = 80;
pub const CHASSIS_OPTIMIZER_ID: &str = "chassis.optimizer/1";
pub const CHASSIS_OPTIMIZER_PARAMETER_V1_SIZE: u32 = 48;
pub const CHASSIS_OPTIMIZER_STEP_V1_SIZE: u32 = 136;
pub const CHASSIS_OPTIMIZER_SUMS: u32 = 1;
pub const CHASSIS_OPTIMIZER_V1_SIZE: u32 = 48;
pub const CHASSIS_OPTIONS_ID: &str = "chassis.options/1";
pub const CHASSIS_OPTIONS_V1_SIZE: u32 = 64;
pub const CHASSIS_OPTION_BOOL: u32 = 1;
pub const CHASSIS_OPTION_FLOAT: u32 = 3;
pub const CHASSIS_OPTION_FLOAT_LIST: u32 = 7;
pub const CHASSIS_OPTION_INT: u32 = 2;
pub const CHASSIS_OPTION_INT_LIST: u32 = 6;
pub const CHASSIS_OPTION_STRING: u32 = 4;
pub const CHASSIS_OPTION_STRING_LIST: u32 = 5;
pub const CHASSIS_OPTION_TABLE: u32 = 8;
pub const CHASSIS_OPTION_V1_SIZE: u32 = 88;
pub const CHASSIS_OP_DESC_V1_SIZE: u32 = 112;
pub const CHASSIS_OP_MIXES_ONLY: u32 = 1;
pub const CHASSIS_OP_VIEW_V1_SIZE: u32 = 72;
pub const CHASSIS_OUT_OF_RANGE: u32 = 11;
pub const CHASSIS_OVERLAP_RING: u32 = 1;
pub const CHASSIS_PARALLEL_ID: &str = "chassis.parallel/1";
pub const CHASSIS_PARALLEL_PARAMETER_V1_SIZE: u32 = 56;
pub const CHASSIS_PARALLEL_PROBLEM_V1_SIZE: u32 = 72;
pub const CHASSIS_PARALLEL_SINK_V1_SIZE: u32 = 32;
pub const CHASSIS_PARALLEL_V1_SIZE: u32 = 136;
pub const CHASSIS_PERMISSION_DENIED: u32 = 7;
pub const CHASSIS_QUANT_ID: &str = "chassis.quant/1";
pub const CHASSIS_QUANT_PARAMETER_V1_SIZE: u32 = 88;
pub const CHASSIS_QUANT_PART_V1_SIZE: u32 = 72;
pub const CHASSIS_QUANT_STORAGE_V1_SIZE: u32 = 56;
pub const CHASSIS_QUANT_V1_SIZE: u32 = 88;
pub const CHASSIS_REDUCE_AVG: u32 = 2;
pub const CHASSIS_REDUCE_KEEP: u32 = 1;
pub const CHASSIS_REDUCE_MAX: u32 = 3;
pub const CHASSIS_REDUCE_SUM: u32 = 1;
pub const CHASSIS_RESOURCE_EXHAUSTED: u32 = 8;
pub const CHASSIS_RNG_ID: &str = "chassis.rng/1";
pub const CHASSIS_RNG_V1_SIZE: u32 = 32;
pub const CHASSIS_ROLE_BIAS: u32 = 2;
pub const CHASSIS_ROLE_EMBEDDING: u32 = 4;
pub const CHASSIS_ROLE_HEAD: u32 = 5;
pub const CHASSIS_ROLE_NORM: u32 = 3;
pub const CHASSIS_ROLE_ROUTER: u32 = 6;
pub const CHASSIS_ROLE_WEIGHT: u32 = 1;
pub const CHASSIS_ROWS_ID: &str = "chassis.rows/1";
pub const CHASSIS_ROWS_READ_V1_SIZE: u32 = 24;
pub const CHASSIS_ROWS_V1_SIZE: u32 = 32;
pub const CHASSIS_ROW_FILE_INFO_V1_SIZE: u32 = 16;
pub const CHASSIS_ROW_SINK_V1_SIZE: u32 = 24;
pub const CHASSIS_RUN_DONE: u32 = 1;
pub const CHASSIS_RUN_FAILED: u32 = 3;
pub const CHASSIS_RUN_PAGE_V1_SIZE: u32 = 32;
pub const CHASSIS_RUN_STOPPED: u32 = 2;
pub const CHASSIS_SAVE_REQUEST_V1_SIZE: u32 = 40;
pub const CHASSIS_SCALARS_V1_SIZE: u32 = 32;
pub const CHASSIS_SCAN_SINK_V1_SIZE: u32 = 32;
pub const CHASSIS_SEQUENCE_ANSWER: u32 = 0;
pub const CHASSIS_SEQUENCE_CHOSEN: u32 = 1;
pub const CHASSIS_SEQUENCE_MISMATCH: u32 = 3;
pub const CHASSIS_SEQUENCE_REJECTED: u32 = 2;
pub const CHASSIS_SHARDS_V1_SIZE: u32 = 80;
pub const CHASSIS_SHARD_DIM: u32 = 2;
pub const CHASSIS_SHARD_FLAT: u32 = 3;
pub const CHASSIS_SHARD_REPLICATE: u32 = 1;
pub const CHASSIS_SHARD_RULE_V1_SIZE: u32 = 48;
pub const CHASSIS_SINK_FINISH_V1_SIZE: u32 = 32;
pub const CHASSIS_SINK_ID: &str = "chassis.sink/1";
pub const CHASSIS_SINK_START_V1_SIZE: u32 = 88;
pub const CHASSIS_SINK_TEXT_V1_SIZE: u32 = 56;
pub const CHASSIS_SINK_V1_SIZE: u32 = 48;
pub const CHASSIS_SLOT_DESC_V1_SIZE: u32 = 72;
pub const CHASSIS_STAGE_PROBLEM_V1_SIZE: u32 = 48;
pub const CHASSIS_STAGE_SINK_V1_SIZE: u32 = 48;
pub const CHASSIS_STATE_DESC_V1_SIZE: u32 = 48;
pub const CHASSIS_STATE_LIKE_PARAMETER: u32 = 1;
pub const CHASSIS_STATE_PER_BLOCK: u32 = 3;
pub const CHASSIS_STATE_SCALAR: u32 = 2;
pub const CHASSIS_STORAGE_DIVISIBLE: u32 = 1;
pub const CHASSIS_STORAGE_SLICES: u32 = 2;
pub const CHASSIS_STORE_V1_SIZE: u32 = 40;
pub const CHASSIS_TASK_ID: &str = "chassis.task/1";
pub const CHASSIS_TASK_V1_SIZE: u32 = 32;
pub const CHASSIS_TENSOR_ID: &str = "chassis.tensor/1";
pub const CHASSIS_TENSOR_SERVICE_V1_SIZE: u32 = 72;
pub const CHASSIS_TENSOR_VIEW_V1_SIZE: u32 = 56;
pub const CHASSIS_TEXT_CHECKPOINT: u32 = 2;
pub const CHASSIS_TEXT_SAMPLE: u32 = 1;
pub const CHASSIS_TEXT_SINK_V1_SIZE: u32 = 24;
pub const CHASSIS_TEXT_SOURCE_V1_SIZE: u32 = 24;
pub const CHASSIS_TEXT_WARNING: u32 = 3;
pub const CHASSIS_TOKENIZER_ADDS_BOS: u32 = 1;
pub const CHASSIS_TOKENIZER_ID: &str = "chassis.tokenizer/1";
pub const CHASSIS_TOKENIZER_INFO_V1_SIZE: u32 = 64;
pub const CHASSIS_TOKENIZER_TRAINS: u32 = 2;
pub const CHASSIS_TOKENIZER_V1_SIZE: u32 = 72;
pub const CHASSIS_TOKEN_ADDED: u32 = 2;
pub const CHASSIS_TOKEN_SINK_V1_SIZE: u32 = 24;
pub const CHASSIS_TOKEN_SPECIAL: u32 = 1;
pub const CHASSIS_TOKEN_UNUSED: u32 = 4;
pub const CHASSIS_TOKEN_V1_SIZE: u32 = 24;
pub const CHASSIS_UNAVAILABLE: u32 = 14;
pub const CHASSIS_UNIMPLEMENTED: u32 = 12;
pub const CHASSIS_UNKNOWN: u32 = 2;
pub const CHASSIS_VOCABULARY_V1_SIZE: u32 = 24;
pub const CHASSIS_WORK_BACKWARD: u32 = 2;
pub const CHASSIS_WORK_BACKWARD_INPUTS: u32 = 3;
pub const CHASSIS_WORK_BACKWARD_PARAMS: u32 = 4;
pub const CHASSIS_WORK_FORWARD: u32 = 1;

pub type chassis_block_t = u32;
pub type chassis_dim_t = u32;
pub type chassis_slot_t = u32;
pub type chassis_tensor_t = *mut AtenTensorOpaque;
pub type chassis_value_t = u32;

abi_opaque!(AtenTensorOpaque);
abi_opaque!(DLManagedTensorVersioned);
abi_opaque!(chassis_backend_group_t);
abi_opaque!(chassis_backend_work_t);
abi_opaque!(chassis_comm_group_t);
abi_opaque!(chassis_comm_work_t);
abi_opaque!(chassis_operator_t);
abi_opaque!(chassis_status_t);

abi_struct! { chassis_adapter_t 64 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 configure: Option<unsafe extern "C" fn(*mut chassis_instance_t, chassis_str_t) -> *mut chassis_status_t>,
    16 8 parameter: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_adapter_parameter_t,
        *mut u32,
    ) -> *mut chassis_status_t>,
    24 8 extend: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_adapter_op_t,
        *const chassis_adapter_builder_t,
    ) -> *mut chassis_status_t>,
    32 8 finish: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    40 8 config: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_adapter_base_t,
        *const chassis_text_sink_t,
    ) -> *mut chassis_status_t>,
    48 8 merge: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_adapter_merge_t,
    ) -> *mut chassis_status_t>,
    56 8 files: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_adapter_files_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_adapter_t, CHASSIS_ADAPTER_V1_SIZE);

abi_struct! { chassis_adapter_axis_t 24 8 {
    0 8 dims: *const chassis_dim_t,
    8 8 num_dims: u64,
    16 8 size: i64,
} }

abi_struct! { chassis_adapter_base_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 16 path: chassis_str_t,
    24 16 config_json: chassis_str_t,
} }
abi_grows!(chassis_adapter_base_t, CHASSIS_ADAPTER_BASE_V1_SIZE);

abi_struct! { chassis_adapter_builder_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 record: *const chassis_builder_t,
    24 8 replace_input: Option<unsafe extern "C" fn(
        *const chassis_adapter_builder_t,
        chassis_value_t,
    ) -> *mut chassis_status_t>,
    32 8 replace_output: Option<unsafe extern "C" fn(
        *const chassis_adapter_builder_t,
        chassis_value_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_adapter_builder_t, CHASSIS_ADAPTER_BUILDER_V1_SIZE);

abi_struct! { chassis_adapter_files_t 48 8 {
    0 4 struct_size: u32,
    4 4 num_tensors: u32,
    8 8 r#impl: *mut c_void,
    16 8 tensors: *const *const chassis_adapter_tensor_t,
    24 16 config_json: chassis_str_t,
    40 8 part: Option<unsafe extern "C" fn(
        *const chassis_adapter_files_t,
        *const chassis_adapter_part_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_adapter_files_t, CHASSIS_ADAPTER_FILES_V1_SIZE);

abi_struct! { chassis_adapter_merge_t 112 8 {
    0 4 struct_size: u32,
    4 4 num_tensors: u32,
    8 16 module: chassis_str_t,
    24 16 parameter: chassis_str_t,
    40 8 row_begin: i64,
    48 8 num_rows: i64,
    56 8 column_begin: i64,
    64 8 num_columns: i64,
    72 8 values: *mut f32,
    80 8 tensors: *const *const chassis_adapter_tensor_t,
    88 8 expert: i64,
    96 16 name: chassis_str_t,
} }
abi_grows!(chassis_adapter_merge_t, CHASSIS_ADAPTER_MERGE_V1_SIZE);

abi_struct! { chassis_adapter_op_t 184 8 {
    0 4 struct_size: u32,
    4 4 role: u32,
    8 16 op: chassis_str_t,
    24 16 name: chassis_str_t,
    40 16 block: chassis_str_t,
    56 16 chain: chassis_str_t,
    72 16 module: chassis_str_t,
    88 8 layer: i64,
    96 4 input: chassis_value_t,
    100 4 output: chassis_value_t,
    104 8 input_dims: *const chassis_dim_t,
    112 8 output_dims: *const chassis_dim_t,
    120 4 num_input_dims: u32,
    124 4 num_output_dims: u32,
    128 8 weight_axes: *const chassis_adapter_axis_t,
    136 4 num_weight_axes: u32,
    140 4 has_bias: u32,
    144 4 num_joined: u32,
    148 4 reserved0: u32,
    152 16 parameter: chassis_str_t,
    168 4 experts: chassis_value_t,
    172 4 num_experts_dims: u32,
    176 8 experts_dims: *const chassis_dim_t,
} }
abi_grows!(chassis_adapter_op_t, CHASSIS_ADAPTER_OP_V1_SIZE);

abi_struct! { chassis_adapter_parameter_t 96 8 {
    0 4 struct_size: u32,
    4 4 role: u32,
    8 16 name: chassis_str_t,
    24 8 sizes: *const i64,
    32 8 num_dims: u64,
    40 16 module: chassis_str_t,
    56 16 op: chassis_str_t,
    72 8 layer: i64,
    80 8 tied: *const chassis_str_t,
    88 8 num_tied: u64,
} }
abi_grows!(chassis_adapter_parameter_t, CHASSIS_ADAPTER_PARAMETER_V1_SIZE);

abi_struct! { chassis_adapter_part_t 88 8 {
    0 4 struct_size: u32,
    4 4 num_dims: u32,
    8 16 parameter: chassis_str_t,
    24 8 begin: *const i64,
    32 8 end: *const i64,
    40 16 tensor: chassis_str_t,
    56 8 tensor_sizes: *const i64,
    64 8 tensor_begin: *const i64,
    72 8 dims: *const u32,
    80 4 num_tensor_dims: u32,
    84 4 reserved0: u32,
} }
abi_grows!(chassis_adapter_part_t, CHASSIS_ADAPTER_PART_V1_SIZE);

abi_struct! { chassis_adapter_tensor_t 40 8 {
    0 4 struct_size: u32,
    4 4 num_dims: u32,
    8 16 name: chassis_str_t,
    24 8 sizes: *const i64,
    32 8 values: *const f32,
} }
abi_grows!(chassis_adapter_tensor_t, CHASSIS_ADAPTER_TENSOR_V1_SIZE);

abi_struct! { chassis_attr_value_list 16 8 {
    0 8 ptr: *const c_void,
    8 8 len: u64,
} }

abi_union! { chassis_attr_value 16 {
    8 i: i64,
    8 f: f64,
    16 list: chassis_attr_value_list,
} }

abi_struct! { chassis_attr_t 40 8 {
    0 16 name: chassis_str_t,
    16 4 tag: u32,
    20 4 reserved0: u32,
    24 16 value: chassis_attr_value,
} }

abi_struct! { chassis_axis_t 16 8 {
    0 8 dims: *const chassis_dim_t,
    8 8 num_dims: u64,
} }

abi_struct! { chassis_boxed_value_list 16 8 {
    0 8 ptr: *const c_void,
    8 8 len: u64,
} }

abi_union! { chassis_boxed_value 16 {
    8 i: i64,
    8 f: f64,
    8 tensor: chassis_tensor_t,
    16 list: chassis_boxed_value_list,
} }

abi_struct! { chassis_boxed_t 24 8 {
    0 4 tag: u32,
    4 4 reserved0: u32,
    8 16 value: chassis_boxed_value,
} }

abi_struct! { chassis_builder_t 96 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 dim: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        i64,
        *mut chassis_dim_t,
    ) -> *mut chassis_status_t>,
    24 8 begin_block: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        *mut chassis_block_t,
    ) -> *mut chassis_status_t>,
    32 8 end_block: Option<unsafe extern "C" fn(*const chassis_builder_t) -> *mut chassis_status_t>,
    40 8 input: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        *const chassis_dim_t,
        u32,
        *mut chassis_value_t,
    ) -> *mut chassis_status_t>,
    48 8 field: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        u32,
        *const chassis_dim_t,
        u32,
        *mut chassis_value_t,
    ) -> *mut chassis_status_t>,
    56 8 slot: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        *const chassis_slot_desc_t,
        *mut chassis_slot_t,
    ) -> *mut chassis_status_t>,
    64 8 op: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        *const chassis_op_desc_t,
        *mut chassis_value_t,
    ) -> *mut chassis_status_t>,
    72 8 output: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        chassis_value_t,
    ) -> *mut chassis_status_t>,
    80 8 chain: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        chassis_str_t,
        *const chassis_block_t,
        u32,
    ) -> *mut chassis_status_t>,
    88 8 bounded_dim: Option<unsafe extern "C" fn(
        *const chassis_builder_t,
        chassis_str_t,
        i64,
        *mut chassis_dim_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_builder_t, CHASSIS_BUILDER_V1_SIZE);

abi_struct! { chassis_call_t 152 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 8 inputs: *const chassis_tensor_t,
    16 8 params: *const chassis_tensor_t,
    24 8 outputs: *mut chassis_tensor_t,
    32 8 saved: *mut chassis_tensor_t,
    40 8 grad_outputs: *const chassis_tensor_t,
    48 8 grad_inputs: *mut chassis_tensor_t,
    56 8 needs_grad_inputs: *const u8,
    64 8 grad_params: *const chassis_tensor_t,
    72 8 grad_params_beta: *const f32,
    80 8 query_offset: i64,
    88 8 stream: *mut c_void,
    96 8 workspace: *mut c_void,
    104 8 workspace_bytes: u64,
    112 8 random_key: u64,
    120 8 first_row: i64,
    128 8 components: *const *const chassis_tensor_t,
    136 8 key_offset: i64,
    144 8 num_positions: i64,
} }
abi_grows!(chassis_call_t, CHASSIS_CALL_V1_SIZE);

abi_struct! { chassis_chat_t 80 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 16 messages_json: chassis_str_t,
    24 16 tools_json: chassis_str_t,
    40 16 variables_json: chassis_str_t,
    56 16 template_text: chassis_str_t,
    72 8 unix_time_s: i64,
} }
abi_grows!(chassis_chat_t, CHASSIS_CHAT_V1_SIZE);

abi_struct! { chassis_chat_sink_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 text: Option<unsafe extern "C" fn(*const chassis_chat_sink_t, chassis_str_t)>,
    24 8 span: Option<unsafe extern "C" fn(*const chassis_chat_sink_t, *const chassis_chat_span_t)>,
} }
abi_grows!(chassis_chat_sink_t, CHASSIS_CHAT_SINK_V1_SIZE);

abi_struct! { chassis_chat_span_t 32 8 {
    0 4 struct_size: u32,
    4 4 leaf: u32,
    8 8 message: u64,
    16 8 begin: u64,
    24 8 end: u64,
} }
abi_grows!(chassis_chat_span_t, CHASSIS_CHAT_SPAN_V1_SIZE);

abi_struct! { chassis_chunk_t 16 4 {
    0 4 first_unit: u32,
    4 4 end_unit: u32,
    8 4 stage: u32,
    12 4 reserved0: u32,
} }

abi_struct! { chassis_collective_t 80 8 {
    0 4 struct_size: u32,
    4 4 op: u32,
    8 4 dtype: u32,
    12 4 reduce: u32,
    16 8 send: *const c_void,
    24 8 recv: *mut c_void,
    32 8 count: u64,
    40 8 counts: *const u64,
    48 8 recv_counts: *const u64,
    56 4 peer: i32,
    60 4 reserved0: u32,
    64 16 name: chassis_str_t,
} }
abi_grows!(chassis_collective_t, CHASSIS_COLLECTIVE_V1_SIZE);

abi_struct! { chassis_comm_t 72 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 group: Option<unsafe extern "C" fn(
        *const chassis_comm_t,
        *const chassis_str_t,
        u32,
        *mut *const chassis_comm_group_t,
    ) -> *mut chassis_status_t>,
    24 8 size: Option<unsafe extern "C" fn(*const chassis_comm_group_t) -> u32>,
    32 8 rank: Option<unsafe extern "C" fn(*const chassis_comm_group_t) -> u32>,
    40 8 start: Option<unsafe extern "C" fn(
        *const chassis_comm_t,
        *const chassis_comm_group_t,
        *const *const chassis_collective_t,
        u32,
        *mut *mut chassis_comm_work_t,
    ) -> *mut chassis_status_t>,
    48 8 wait: Option<unsafe extern "C" fn(*const chassis_comm_t, *mut chassis_comm_work_t) -> *mut chassis_status_t>,
    56 8 done: Option<unsafe extern "C" fn(*const chassis_comm_t, *mut chassis_comm_work_t) -> i32>,
    64 8 agree: Option<unsafe extern "C" fn(
        *const chassis_comm_t,
        chassis_str_t,
        *mut chassis_status_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_comm_t, CHASSIS_COMM_V1_SIZE);

abi_struct! { chassis_comm_backend_t 80 8 {
    0 4 struct_size: u32,
    4 4 properties: u32,
    8 8 supports: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, i32) -> *mut chassis_status_t>,
    16 8 create_group: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_comm_group_desc_t,
        *mut *mut chassis_backend_group_t,
    ) -> *mut chassis_status_t>,
    24 8 destroy_group: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut chassis_backend_group_t)>,
    32 8 start: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut chassis_backend_group_t,
        *const *const chassis_collective_t,
        u32,
        *mut c_void,
        *mut *mut chassis_backend_work_t,
    ) -> *mut chassis_status_t>,
    40 8 wait: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut chassis_backend_work_t,
        u64,
    ) -> *mut chassis_status_t>,
    48 8 wait_on_stream: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut chassis_backend_work_t,
        *mut c_void,
    ) -> *mut chassis_status_t>,
    56 8 done: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut chassis_backend_work_t) -> i32>,
    64 8 release: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut chassis_backend_work_t)>,
    72 8 abort: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut chassis_backend_group_t)>,
} }
abi_grows!(chassis_comm_backend_t, CHASSIS_COMM_BACKEND_V1_SIZE);

abi_struct! { chassis_comm_group_desc_t 72 8 {
    0 4 struct_size: u32,
    4 4 size: u32,
    8 4 rank: u32,
    12 4 device_type: u32,
    16 4 device_index: i32,
    20 4 reserved0: u32,
    24 16 name: chassis_str_t,
    40 8 store: *const chassis_store_t,
    48 8 timeout_ns: u64,
    56 16 host: chassis_str_t,
} }
abi_grows!(chassis_comm_group_desc_t, CHASSIS_COMM_GROUP_DESC_V1_SIZE);

abi_struct! { chassis_component_t 56 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 16 suffix: chassis_str_t,
    24 8 unit_elements: i64,
    32 8 unit_values: i64,
    40 8 num_values: i64,
    48 4 staged_dtype: u32,
    52 4 flags: u32,
} }
abi_grows!(chassis_component_t, CHASSIS_COMPONENT_V1_SIZE);

abi_struct! { chassis_dim_size_t 24 8 {
    0 16 name: chassis_str_t,
    16 8 size: i64,
} }

abi_struct! { chassis_directory_t 32 8 {
    0 4 struct_size: u32,
    4 4 num_files: u32,
    8 8 r#impl: *mut c_void,
    16 8 entry: Option<unsafe extern "C" fn(
        *const chassis_directory_t,
        u32,
        *mut chassis_str_t,
        *mut u64,
    ) -> *mut chassis_status_t>,
    24 8 read: Option<unsafe extern "C" fn(
        *const chassis_directory_t,
        u32,
        u64,
        u64,
        *mut c_void,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_directory_t, CHASSIS_DIRECTORY_V1_SIZE);

abi_struct! { chassis_disk_pair_t 32 8 {
    0 16 key: chassis_str_t,
    16 16 value: chassis_str_t,
} }

abi_struct! { chassis_disk_part_t 40 8 {
    0 4 struct_size: u32,
    4 4 num_dims: u32,
    8 16 parameter: chassis_str_t,
    24 8 begin: *const i64,
    32 8 sizes: *const i64,
} }
abi_grows!(chassis_disk_part_t, CHASSIS_DISK_PART_V1_SIZE);

abi_struct! { chassis_disk_rule_t 48 8 {
    0 4 struct_size: u32,
    4 4 num_parts: u32,
    8 16 name: chassis_str_t,
    24 8 parts: *const *const chassis_disk_part_t,
    32 4 join_dim: u32,
    36 4 num_dims: u32,
    40 8 dims: *const u32,
} }
abi_grows!(chassis_disk_rule_t, CHASSIS_DISK_RULE_V1_SIZE);

abi_struct! { chassis_disk_sink_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 tensor: Option<unsafe extern "C" fn(
        *const chassis_disk_sink_t,
        *const chassis_disk_rule_t,
    ) -> *mut chassis_status_t>,
    24 8 literal: Option<unsafe extern "C" fn(
        *const chassis_disk_sink_t,
        *const chassis_literal_t,
    ) -> *mut chassis_status_t>,
    32 8 skip: Option<unsafe extern "C" fn(*const chassis_disk_sink_t, chassis_str_t) -> *mut chassis_status_t>,
    40 8 alias: Option<unsafe extern "C" fn(
        *const chassis_disk_sink_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_disk_sink_t, CHASSIS_DISK_SINK_V1_SIZE);

abi_struct! { chassis_disk_tensor_t 64 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 16 name: chassis_str_t,
    24 8 global_shape: *const i64,
    32 8 box_offset: *const i64,
    40 8 box_shape: *const i64,
    48 4 num_dims: u32,
    52 4 rank: u32,
    56 8 num_bytes: u64,
} }
abi_grows!(chassis_disk_tensor_t, CHASSIS_DISK_TENSOR_V1_SIZE);

abi_struct! { chassis_dispatch_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 find: Option<unsafe extern "C" fn(
        *const chassis_dispatch_t,
        chassis_str_t,
        *mut *const chassis_operator_t,
    ) -> *mut chassis_status_t>,
    24 8 call: Option<unsafe extern "C" fn(
        *const chassis_dispatch_t,
        *const chassis_operator_t,
        *const chassis_boxed_t,
        u32,
        *mut chassis_boxed_t,
        u32,
    ) -> *mut chassis_status_t>,
    32 8 free_list: Option<unsafe extern "C" fn(*const chassis_dispatch_t, *mut chassis_boxed_t)>,
} }
abi_grows!(chassis_dispatch_t, CHASSIS_DISPATCH_V1_SIZE);

abi_struct! { chassis_division_problem_t 32 8 {
    0 4 struct_size: u32,
    4 4 num_axes: u32,
    8 8 axes: *const chassis_mesh_axis_t,
    16 8 dims: *const chassis_dim_size_t,
    24 8 num_dims: u64,
} }
abi_grows!(chassis_division_problem_t, CHASSIS_DIVISION_PROBLEM_V1_SIZE);

abi_struct! { chassis_division_sink_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 divide: Option<unsafe extern "C" fn(
        *const chassis_division_sink_t,
        chassis_str_t,
        chassis_str_t,
        u32,
    ) -> *mut chassis_status_t>,
    24 8 sequence_parallel: Option<unsafe extern "C" fn(
        *const chassis_division_sink_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    32 8 context_parallel: Option<unsafe extern "C" fn(
        *const chassis_division_sink_t,
        chassis_str_t,
        u32,
    ) -> *mut chassis_status_t>,
    40 8 overlap: Option<unsafe extern "C" fn(
        *const chassis_division_sink_t,
        chassis_str_t,
        u32,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_division_sink_t, CHASSIS_DIVISION_SINK_V1_SIZE);

abi_struct! { chassis_factory_t 24 8 {
    0 4 struct_size: u32,
    4 4 num_members: u32,
    8 8 member: Option<unsafe extern "C" fn(u32) -> *const chassis_member_t>,
    16 8 create: Option<unsafe extern "C" fn(
        *const chassis_host_t,
        chassis_str_t,
        chassis_str_t,
        *mut *mut chassis_instance_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_factory_t, CHASSIS_FACTORY_V1_SIZE);

abi_struct! { chassis_file_sink_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 file: Option<unsafe extern "C" fn(
        *const chassis_file_sink_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_file_sink_t, CHASSIS_FILE_SINK_V1_SIZE);

abi_struct! { chassis_finish_sink_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 fill: Option<unsafe extern "C" fn(*const chassis_finish_sink_t, u64, chassis_str_t) -> *mut chassis_status_t>,
    24 8 checksum: Option<unsafe extern "C" fn(
        *const chassis_finish_sink_t,
        u64,
        u64,
        *mut u32,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_finish_sink_t, CHASSIS_FINISH_SINK_V1_SIZE);

abi_struct! { chassis_format_t 40 8 {
    0 4 struct_size: u32,
    4 4 whole_tensors: u32,
    8 8 layout: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_save_request_t,
        *const chassis_layout_sink_t,
    ) -> *mut chassis_status_t>,
    16 8 scan: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_directory_t,
        *const chassis_scan_sink_t,
    ) -> *mut chassis_status_t>,
    24 8 finish: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_save_request_t,
        u32,
        *const chassis_finish_sink_t,
    ) -> *mut chassis_status_t>,
    32 4 checksum: u32,
    36 4 isolated: u32,
} }
abi_grows!(chassis_format_t, CHASSIS_FORMAT_V1_SIZE);

abi_struct! { chassis_gemm_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 run: Option<unsafe extern "C" fn(
        *const chassis_gemm_t,
        *const chassis_gemm_problem_t,
    ) -> *mut chassis_status_t>,
    24 8 scratch_bytes: Option<unsafe extern "C" fn(*const chassis_gemm_t, *const chassis_gemm_problem_t) -> u64>,
    32 8 run_many: Option<unsafe extern "C" fn(
        *const chassis_gemm_t,
        *const chassis_gemm_problem_t,
        u32,
    ) -> *mut chassis_status_t>,
    40 8 many_scratch_bytes: Option<unsafe extern "C" fn(
        *const chassis_gemm_t,
        *const chassis_gemm_problem_t,
        u32,
    ) -> u64>,
} }
abi_grows!(chassis_gemm_t, CHASSIS_GEMM_V1_SIZE);

abi_struct! { chassis_gemm_problem_t 104 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 4 a_dtype: u32,
    12 4 b_dtype: u32,
    16 4 c_dtype: u32,
    20 4 device_type: u32,
    24 8 m: i64,
    32 8 n: i64,
    40 8 k: i64,
    48 8 lda: i64,
    56 8 ldb: i64,
    64 8 ldc: i64,
    72 8 a: *const c_void,
    80 8 b: *const c_void,
    88 8 c: *mut c_void,
    96 4 alpha: f32,
    100 4 beta: f32,
} }
abi_grows!(chassis_gemm_problem_t, CHASSIS_GEMM_PROBLEM_V1_SIZE);

abi_struct! { chassis_host_t 64 8 {
    0 4 struct_size: u32,
    4 2 abi_major: u16,
    6 2 abi_minor: u16,
    8 8 r#impl: *mut c_void,
    16 8 get_service: Option<unsafe extern "C" fn(*const chassis_host_t, chassis_str_t) -> *const c_void>,
    24 8 status_new: Option<unsafe extern "C" fn(
        *const chassis_host_t,
        i32,
        chassis_str_t,
        *mut chassis_status_t,
    ) -> *mut chassis_status_t>,
    32 8 status_add: Option<unsafe extern "C" fn(*mut chassis_status_t, chassis_str_t, chassis_str_t)>,
    40 8 status_code: Option<unsafe extern "C" fn(*const chassis_status_t) -> i32>,
    48 8 status_message: Option<unsafe extern "C" fn(*const chassis_status_t) -> chassis_str_t>,
    56 8 status_release: Option<unsafe extern "C" fn(*mut chassis_status_t)>,
} }
abi_grows!(chassis_host_t, CHASSIS_HOST_V1_SIZE);

abi_struct! { chassis_infer_t 280 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 4 keeps_inputs: u32,
    12 4 keeps_outputs: u32,
    16 4 num_saved: u32,
    20 4 overwrites_inputs: u32,
    24 224 saved: [chassis_saved_t; 4],
    248 8 workspace_forward_bytes: u64,
    256 8 workspace_backward_bytes: u64,
    264 8 tiles: *const chassis_tile_t,
    272 4 num_tiles: u32,
    276 4 tile: u32,
} }
abi_grows!(chassis_infer_t, CHASSIS_INFER_V1_SIZE);

abi_struct! { chassis_instance_t 64 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 get_interface: Option<unsafe extern "C" fn(*const chassis_instance_t, chassis_str_t) -> *const c_void>,
    24 8 prepare: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    32 8 activate: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    40 8 quiesce: Option<unsafe extern "C" fn(*mut chassis_instance_t, u64) -> *mut chassis_status_t>,
    48 8 deactivate: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    56 8 destroy: Option<unsafe extern "C" fn(*mut chassis_instance_t)>,
} }
abi_grows!(chassis_instance_t, CHASSIS_INSTANCE_V1_SIZE);

abi_struct! { chassis_layout_sink_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 file: Option<unsafe extern "C" fn(
        *const chassis_layout_sink_t,
        chassis_str_t,
        chassis_str_t,
        u64,
        u32,
    ) -> *mut chassis_status_t>,
    24 8 place: Option<unsafe extern "C" fn(*const chassis_layout_sink_t, u32, u32, u64) -> *mut chassis_status_t>,
    32 8 text_file: Option<unsafe extern "C" fn(
        *const chassis_layout_sink_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_layout_sink_t, CHASSIS_LAYOUT_SINK_V1_SIZE);

abi_struct! { chassis_literal_t 48 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 16 name: chassis_str_t,
    24 8 sizes: *const i64,
    32 8 num_dims: u64,
    40 8 data: *const c_void,
} }
abi_grows!(chassis_literal_t, CHASSIS_LITERAL_V1_SIZE);

abi_struct! { chassis_log_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 enabled: Option<unsafe extern "C" fn(*const chassis_log_t, u32) -> u32>,
    24 8 write: Option<unsafe extern "C" fn(*const chassis_log_t, u32, chassis_str_t)>,
    32 8 count: Option<unsafe extern "C" fn(*const chassis_log_t, chassis_str_t, chassis_str_t)>,
} }
abi_grows!(chassis_log_t, CHASSIS_LOG_V1_SIZE);

abi_struct! { chassis_member_t 64 8 {
    0 4 struct_size: u32,
    4 4 num_options: u32,
    8 16 kind: chassis_str_t,
    24 16 id: chassis_str_t,
    40 16 doc: chassis_str_t,
    56 8 options: *const chassis_option_t,
} }
abi_grows!(chassis_member_t, CHASSIS_MEMBER_V1_SIZE);

abi_struct! { chassis_members_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 open: Option<unsafe extern "C" fn(
        *const chassis_members_t,
        chassis_str_t,
        chassis_str_t,
        chassis_str_t,
        *mut *mut chassis_instance_t,
    ) -> *mut chassis_status_t>,
    24 8 close: Option<unsafe extern "C" fn(*const chassis_members_t, *mut chassis_instance_t)>,
} }
abi_grows!(chassis_members_t, CHASSIS_MEMBERS_V1_SIZE);

abi_struct! { chassis_memory_t 56 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 alloc: Option<unsafe extern "C" fn(*const chassis_memory_t, u64, *mut *mut c_void) -> *mut chassis_status_t>,
    24 8 free: Option<unsafe extern "C" fn(*const chassis_memory_t, *mut c_void)>,
    32 8 usage: Option<unsafe extern "C" fn(*const chassis_memory_t, u32, *mut u64, *mut u64)>,
    40 8 alloc_on: Option<unsafe extern "C" fn(
        *const chassis_memory_t,
        u32,
        i32,
        u32,
        u64,
        *mut *mut c_void,
    ) -> *mut chassis_status_t>,
    48 8 free_on: Option<unsafe extern "C" fn(*const chassis_memory_t, *mut c_void)>,
} }
abi_grows!(chassis_memory_t, CHASSIS_MEMORY_V1_SIZE);

abi_struct! { chassis_mesh_axis_t 24 8 {
    0 16 name: chassis_str_t,
    16 4 size: u32,
    20 4 rank: u32,
} }

abi_struct! { chassis_metrics_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 set: Option<unsafe extern "C" fn(*const chassis_metrics_t, chassis_str_t, f64)>,
    24 8 add: Option<unsafe extern "C" fn(*const chassis_metrics_t, chassis_str_t, f64)>,
} }
abi_grows!(chassis_metrics_t, CHASSIS_METRICS_V1_SIZE);

abi_struct! { chassis_model_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 configure: Option<unsafe extern "C" fn(*mut chassis_instance_t, chassis_str_t) -> *mut chassis_status_t>,
    16 8 record: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_builder_t,
    ) -> *mut chassis_status_t>,
    24 8 config: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_text_sink_t,
    ) -> *mut chassis_status_t>,
    32 8 disk_mapping: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_disk_sink_t,
    ) -> *mut chassis_status_t>,
    40 8 max_positions: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> i64>,
} }
abi_grows!(chassis_model_t, CHASSIS_MODEL_V1_SIZE);

abi_struct! { chassis_node_t 96 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 16 name: chassis_str_t,
    24 4 device_type: u32,
    28 4 device_index: i32,
    32 8 operands: *const *const chassis_operand_t,
    40 8 ops: *const *const chassis_op_view_t,
    48 8 inputs: *const u32,
    56 8 params: *const u32,
    64 8 outputs: *const u32,
    72 4 num_operands: u32,
    76 4 num_ops: u32,
    80 4 num_inputs: u32,
    84 4 num_params: u32,
    88 4 num_outputs: u32,
    92 4 reserved0: u32,
} }
abi_grows!(chassis_node_t, CHASSIS_NODE_V1_SIZE);

abi_struct! { chassis_objective_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 describe: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut chassis_objective_desc_t,
    ) -> *mut chassis_status_t>,
    16 8 prepare: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_objective_batch_t,
        *mut f64,
        *mut f64,
    ) -> *mut chassis_status_t>,
    24 8 evaluate: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_objective_batch_t,
        *const chassis_objective_result_t,
    ) -> *mut chassis_status_t>,
    32 8 metrics: Option<unsafe extern "C" fn(*mut chassis_instance_t, *const f64, *mut f64) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_objective_t, CHASSIS_OBJECTIVE_V1_SIZE);

abi_struct! { chassis_objective_batch_t 168 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 num_sequences: u64,
    16 8 num_tokens: u64,
    24 8 role: *const u32,
    32 8 unit: *const u64,
    40 8 target: *const f64,
    48 8 margin: *const f64,
    56 8 logp: *const f64,
    64 8 reference_logp: *const f64,
    72 8 length: *const f64,
    80 8 score: *const f64,
    88 8 first_token: *const u64,
    96 8 token_logp: *const f64,
    104 8 reference_token_logp: *const f64,
    112 8 old_token_logp: *const f64,
    120 8 state: *const f64,
    128 8 sequence_state: *const f64,
    136 8 term_weight: *const f64,
    144 8 teacher_count: *const f64,
    152 8 teacher_logp: *const f64,
    160 8 top_logp: *const f64,
} }
abi_grows!(chassis_objective_batch_t, CHASSIS_OBJECTIVE_BATCH_V1_SIZE);

abi_struct! { chassis_objective_desc_t 80 8 {
    0 4 struct_size: u32,
    4 4 values: u32,
    8 4 units: u32,
    12 4 needs: u32,
    16 4 num_scores: u32,
    20 4 num_targets: u32,
    24 4 num_terms: u32,
    28 4 num_metrics: u32,
    32 8 terms: *const chassis_objective_term_t,
    40 8 metrics: *const chassis_objective_metric_t,
    48 4 num_sums: u32,
    52 4 state_size: u32,
    56 4 state_per_sequence: u32,
    60 4 num_classes: u32,
    64 4 top_k: u32,
    68 4 reserved0: u32,
    72 8 temperature: f64,
} }
abi_grows!(chassis_objective_desc_t, CHASSIS_OBJECTIVE_DESC_V1_SIZE);

abi_struct! { chassis_objective_metric_t 24 8 {
    0 16 name: chassis_str_t,
    16 4 better: u32,
    20 4 reserved0: u32,
} }

abi_struct! { chassis_objective_result_t 56 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 terms: *mut f64,
    16 8 sums: *mut f64,
    24 8 grad_logp: *mut f64,
    32 8 grad_score: *mut f64,
    40 8 grad_token_logp: *mut f64,
    48 8 grad_top_logp: *mut f64,
} }
abi_grows!(chassis_objective_result_t, CHASSIS_OBJECTIVE_RESULT_V1_SIZE);

abi_struct! { chassis_objective_term_t 24 8 {
    0 16 name: chassis_str_t,
    16 4 count: u32,
    20 4 reserved0: u32,
} }

abi_struct! { chassis_op_desc_t 112 8 {
    0 4 struct_size: u32,
    4 4 num_inputs: u32,
    8 16 id: chassis_str_t,
    24 16 name: chassis_str_t,
    40 8 inputs: *const chassis_value_t,
    48 8 params: *const chassis_slot_t,
    56 8 attrs: *const chassis_attr_t,
    64 8 output_dims: *const chassis_dim_t,
    72 4 num_params: u32,
    76 4 num_attrs: u32,
    80 4 num_output_dims: u32,
    84 4 reserved0: u32,
    88 8 mixed_dims: *const chassis_dim_t,
    96 4 num_mixed_dims: u32,
    100 4 flags: u32,
    104 4 output_dtype: u32,
    108 4 reserved1: u32,
} }
abi_grows!(chassis_op_desc_t, CHASSIS_OP_DESC_V1_SIZE);

abi_struct! { chassis_op_view_t 72 8 {
    0 4 struct_size: u32,
    4 4 num_attrs: u32,
    8 16 id: chassis_str_t,
    24 8 attrs: *const chassis_attr_t,
    32 8 inputs: *const u32,
    40 8 params: *const u32,
    48 8 outputs: *const u32,
    56 4 num_inputs: u32,
    60 4 num_params: u32,
    64 4 num_outputs: u32,
    68 4 reserved0: u32,
} }
abi_grows!(chassis_op_view_t, CHASSIS_OP_VIEW_V1_SIZE);

abi_struct! { chassis_operand_t 64 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 4 num_dims: u32,
    12 4 needs_grad: u32,
    16 8 local_shape: *const i64,
    24 8 dims: *const chassis_str_t,
    32 8 num_components: u64,
    40 8 components: *const *const chassis_component_t,
    48 8 whole_shape: *const i64,
    56 8 begin: *const i64,
} }
abi_grows!(chassis_operand_t, CHASSIS_OPERAND_V1_SIZE);

abi_struct! { chassis_ops_t 80 8 {
    0 4 struct_size: u32,
    4 4 num_patterns: u32,
    8 8 patterns: *const chassis_str_t,
    16 8 claim: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_node_t,
        *mut f64,
    ) -> *mut chassis_status_t>,
    24 8 infer: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_node_t,
        *mut chassis_infer_t,
    ) -> *mut chassis_status_t>,
    32 8 create_kernel: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_node_t,
        *mut *mut c_void,
    ) -> *mut chassis_status_t>,
    40 8 destroy_kernel: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut c_void)>,
    48 8 forward: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut c_void,
        *mut chassis_call_t,
    ) -> *mut chassis_status_t>,
    56 8 backward_inputs: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut c_void,
        *mut chassis_call_t,
    ) -> *mut chassis_status_t>,
    64 8 backward_params: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut c_void,
        *mut chassis_call_t,
    ) -> *mut chassis_status_t>,
    72 8 forward_backward: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut c_void,
        *mut chassis_call_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_ops_t, CHASSIS_OPS_V1_SIZE);

abi_struct! { chassis_optimizer_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 states: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_optimizer_parameter_t,
        *mut *const chassis_state_desc_t,
        *mut u32,
    ) -> *mut chassis_status_t>,
    16 8 step: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_optimizer_step_t,
    ) -> *mut chassis_status_t>,
    24 8 workspace_bytes: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const *const chassis_optimizer_parameter_t,
        u32,
    ) -> u64>,
    32 4 flags: u32,
    36 4 reserved1: u32,
    40 8 supports: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, i32) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_optimizer_t, CHASSIS_OPTIMIZER_V1_SIZE);

abi_struct! { chassis_optimizer_parameter_t 48 8 {
    0 4 struct_size: u32,
    4 4 role: u32,
    8 16 name: chassis_str_t,
    24 8 global_shape: *const i64,
    32 4 num_dims: u32,
    36 4 num_boxes: u32,
    40 8 boxes: *const i64,
} }
abi_grows!(chassis_optimizer_parameter_t, CHASSIS_OPTIMIZER_PARAMETER_V1_SIZE);

abi_struct! { chassis_optimizer_step_t 136 8 {
    0 4 struct_size: u32,
    4 4 num_tensors: u32,
    8 8 step: i64,
    16 8 lr: f64,
    24 8 grad_scale: f64,
    32 8 params: *const chassis_tensor_t,
    40 8 grads: *const chassis_tensor_t,
    48 8 states: *const chassis_tensor_t,
    56 8 weight_decay: *const f64,
    64 8 lr_scale: *const f64,
    72 8 stream: *mut c_void,
    80 8 workspace: *mut c_void,
    88 8 workspace_bytes: u64,
    96 8 num_states: *const u32,
    104 8 parameters: *const *const chassis_optimizer_parameter_t,
    112 8 device_grad_scale: chassis_tensor_t,
    120 8 r#impl: *mut c_void,
    128 8 sum_over_parameters: Option<unsafe extern "C" fn(
        *const chassis_optimizer_step_t,
        *const f64,
        u32,
        *mut f64,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_optimizer_step_t, CHASSIS_OPTIMIZER_STEP_V1_SIZE);

abi_struct! { chassis_option_t 88 8 {
    0 4 struct_size: u32,
    4 4 r#type: u32,
    8 16 name: chassis_str_t,
    24 16 default_json: chassis_str_t,
    40 16 doc: chassis_str_t,
    56 8 min: f64,
    64 8 max: f64,
    72 4 has_range: u32,
    76 4 num_choices: u32,
    80 8 choices: *const chassis_str_t,
} }
abi_grows!(chassis_option_t, CHASSIS_OPTION_V1_SIZE);

abi_struct! { chassis_options_t 64 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 get_bool: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut u32,
    ) -> *mut chassis_status_t>,
    24 8 get_int: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut i64,
    ) -> *mut chassis_status_t>,
    32 8 get_float: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut f64,
    ) -> *mut chassis_status_t>,
    40 8 get_string: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut chassis_str_t,
    ) -> *mut chassis_status_t>,
    48 8 get_json: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut chassis_str_t,
    ) -> *mut chassis_status_t>,
    56 8 origin: Option<unsafe extern "C" fn(
        *const chassis_options_t,
        chassis_str_t,
        *mut chassis_str_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_options_t, CHASSIS_OPTIONS_V1_SIZE);

abi_struct! { chassis_parallel_t 136 8 {
    0 4 struct_size: u32,
    4 4 num_savings: u32,
    8 16 home_axis: chassis_str_t,
    24 8 resolve: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_parallel_problem_t,
        *const chassis_parallel_sink_t,
    ) -> *mut chassis_status_t>,
    32 8 bind: Option<unsafe extern "C" fn(*mut chassis_instance_t, *const chassis_shards_t) -> *mut chassis_status_t>,
    40 8 pre_forward: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, u32) -> *mut chassis_status_t>,
    48 8 post_forward: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, u32) -> *mut chassis_status_t>,
    56 8 pre_backward: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, u32) -> *mut chassis_status_t>,
    64 8 grad_ready: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, u32) -> *mut chassis_status_t>,
    72 8 post_backward: Option<unsafe extern "C" fn(*mut chassis_instance_t, u32, u32) -> *mut chassis_status_t>,
    80 8 finish_grads: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    88 8 post_optimizer: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    96 8 drain: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    104 8 savings: *const chassis_saving_t,
    112 8 divide: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_division_problem_t,
        *const chassis_division_sink_t,
    ) -> *mut chassis_status_t>,
    120 8 stages: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_stage_problem_t,
        *const chassis_stage_sink_t,
    ) -> *mut chassis_status_t>,
    128 8 replicas_differ: Option<unsafe extern "C" fn(*mut chassis_instance_t, chassis_str_t) -> i32>,
} }
abi_grows!(chassis_parallel_t, CHASSIS_PARALLEL_V1_SIZE);

abi_struct! { chassis_parallel_parameter_t 56 8 {
    0 4 struct_size: u32,
    4 4 num_dims: u32,
    8 8 shape: *const i64,
    16 16 name: chassis_str_t,
    32 8 num_elements: i64,
    40 4 trainable: u32,
    44 4 num_units: u32,
    48 8 units: *const u32,
} }
abi_grows!(chassis_parallel_parameter_t, CHASSIS_PARALLEL_PARAMETER_V1_SIZE);

abi_struct! { chassis_parallel_problem_t 72 8 {
    0 4 struct_size: u32,
    4 4 num_axes: u32,
    8 8 axes: *const chassis_mesh_axis_t,
    16 4 num_parameters: u32,
    20 4 num_units: u32,
    24 8 parameters: *const *const chassis_parallel_parameter_t,
    32 8 unit_names: *const chassis_str_t,
    40 4 compute_dtype: u32,
    44 4 reduce_dtype: u32,
    48 4 device_type: u32,
    52 4 num_microbatches: u32,
    56 4 num_chunks: u32,
    60 4 num_stages: u32,
    64 8 chunks: *const chassis_chunk_t,
} }
abi_grows!(chassis_parallel_problem_t, CHASSIS_PARALLEL_PROBLEM_V1_SIZE);

abi_struct! { chassis_parallel_sink_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 claim: Option<unsafe extern "C" fn(*const chassis_parallel_sink_t, chassis_str_t) -> *mut chassis_status_t>,
    24 8 place: Option<unsafe extern "C" fn(
        *const chassis_parallel_sink_t,
        *const chassis_shard_rule_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_parallel_sink_t, CHASSIS_PARALLEL_SINK_V1_SIZE);

abi_struct! { chassis_quant_t 88 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 configure: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        chassis_str_t,
        *mut u32,
    ) -> *mut chassis_status_t>,
    16 8 parameter: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_parameter_t,
        *mut *const chassis_quant_storage_t,
    ) -> *mut chassis_status_t>,
    24 8 finish_model: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    32 8 encode: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
    ) -> *mut chassis_status_t>,
    40 8 finish: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
    ) -> *mut chassis_status_t>,
    48 8 decode: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
    ) -> *mut chassis_status_t>,
    56 8 verify: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
    ) -> *mut chassis_status_t>,
    64 8 write_state: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
        *const chassis_text_sink_t,
    ) -> *mut chassis_status_t>,
    72 8 read_state: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_quant_part_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    80 8 config: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_text_sink_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_quant_t, CHASSIS_QUANT_V1_SIZE);

abi_struct! { chassis_quant_parameter_t 88 8 {
    0 4 struct_size: u32,
    4 4 role: u32,
    8 16 name: chassis_str_t,
    24 16 module: chassis_str_t,
    40 16 op: chassis_str_t,
    56 8 sizes: *const i64,
    64 8 num_dims: u64,
    72 4 is_added: u32,
    76 4 num_tied: u32,
    80 4 num_readers: u32,
    84 4 reserved0: u32,
} }
abi_grows!(chassis_quant_parameter_t, CHASSIS_QUANT_PARAMETER_V1_SIZE);

abi_struct! { chassis_quant_part_t 72 8 {
    0 4 struct_size: u32,
    4 4 value_dtype: u32,
    8 8 storage: *const chassis_quant_storage_t,
    16 8 sizes: *const i64,
    24 8 num_sizes: u64,
    32 8 begin: i64,
    40 8 count: i64,
    48 8 values: *mut c_void,
    56 8 components: *const *mut c_void,
    64 8 staged: *const *const c_void,
} }
abi_grows!(chassis_quant_part_t, CHASSIS_QUANT_PART_V1_SIZE);

abi_struct! { chassis_quant_storage_t 56 8 {
    0 4 struct_size: u32,
    4 4 num_components: u32,
    8 16 scheme: chassis_str_t,
    24 8 components: *const *const chassis_component_t,
    32 16 state_suffix: chassis_str_t,
    48 4 flags: u32,
    52 4 reserved0: u32,
} }
abi_grows!(chassis_quant_storage_t, CHASSIS_QUANT_STORAGE_V1_SIZE);

abi_struct! { chassis_rng_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 uniform: Option<unsafe extern "C" fn(*const chassis_rng_t, chassis_str_t, u64, u64, *mut f32)>,
    24 8 normal: Option<unsafe extern "C" fn(*const chassis_rng_t, chassis_str_t, u64, u64, *mut f32)>,
} }
abi_grows!(chassis_rng_t, CHASSIS_RNG_V1_SIZE);

abi_struct! { chassis_row_file_info_t 16 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 num_rows: i64,
} }
abi_grows!(chassis_row_file_info_t, CHASSIS_ROW_FILE_INFO_V1_SIZE);

abi_struct! { chassis_row_sink_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 row: Option<unsafe extern "C" fn(*const chassis_row_sink_t, chassis_str_t)>,
} }
abi_grows!(chassis_row_sink_t, CHASSIS_ROW_SINK_V1_SIZE);

abi_struct! { chassis_rows_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 open: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        chassis_str_t,
        *mut chassis_row_file_info_t,
        *mut *mut c_void,
    ) -> *mut chassis_status_t>,
    16 8 next: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut c_void,
        u64,
        *const chassis_row_sink_t,
        *mut chassis_rows_read_t,
    ) -> *mut chassis_status_t>,
    24 8 close: Option<unsafe extern "C" fn(*mut chassis_instance_t, *mut c_void)>,
} }
abi_grows!(chassis_rows_t, CHASSIS_ROWS_V1_SIZE);

abi_struct! { chassis_rows_read_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 num_rows: u64,
    16 8 num_bytes: u64,
} }
abi_grows!(chassis_rows_read_t, CHASSIS_ROWS_READ_V1_SIZE);

abi_struct! { chassis_run_page_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 context: *mut c_void,
    16 8 html: Option<unsafe extern "C" fn(
        *mut c_void,
        u32,
        Option<unsafe extern "C" fn(*mut c_void, chassis_str_t)>,
        *mut c_void,
    ) -> *mut chassis_status_t>,
    24 8 data: Option<unsafe extern "C" fn(
        *mut c_void,
        i64,
        Option<unsafe extern "C" fn(*mut c_void, chassis_str_t)>,
        *mut c_void,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_run_page_t, CHASSIS_RUN_PAGE_V1_SIZE);

abi_struct! { chassis_save_request_t 40 8 {
    0 4 struct_size: u32,
    4 4 num_tensors: u32,
    8 8 tensors: *const *const chassis_disk_tensor_t,
    16 8 metadata: *const chassis_disk_pair_t,
    24 4 num_metadata: u32,
    28 4 num_ranks: u32,
    32 8 max_file_bytes: u64,
} }
abi_grows!(chassis_save_request_t, CHASSIS_SAVE_REQUEST_V1_SIZE);

abi_struct! { chassis_saved_t 56 8 {
    0 4 dtype: u32,
    4 4 num_dims: u32,
    8 48 sizes: [i64; 6],
} }

abi_struct! { chassis_saving_t 32 8 {
    0 16 option: chassis_str_t,
    16 16 value: chassis_str_t,
} }

abi_struct! { chassis_scalar_t 24 8 {
    0 16 name: chassis_str_t,
    16 8 value: f64,
} }

abi_struct! { chassis_scalars_t 32 8 {
    0 4 struct_size: u32,
    4 4 num_scalars: u32,
    8 8 step: i64,
    16 8 time: f64,
    24 8 scalars: *const chassis_scalar_t,
} }
abi_grows!(chassis_scalars_t, CHASSIS_SCALARS_V1_SIZE);

abi_struct! { chassis_scan_sink_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 tensor: Option<unsafe extern "C" fn(
        *const chassis_scan_sink_t,
        *const chassis_disk_tensor_t,
        u32,
        u64,
    ) -> *mut chassis_status_t>,
    24 8 metadata: Option<unsafe extern "C" fn(
        *const chassis_scan_sink_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_scan_sink_t, CHASSIS_SCAN_SINK_V1_SIZE);

abi_struct! { chassis_shard_rule_t 48 8 {
    0 4 struct_size: u32,
    4 4 parameter: u32,
    8 4 kind: u32,
    12 4 dim: u32,
    16 4 num_axes: u32,
    20 4 resident: u32,
    24 8 axes: *const chassis_str_t,
    32 4 gather_dtype: u32,
    36 4 reduce_dtype: u32,
    40 4 offload: u32,
    44 4 pin_memory: u32,
} }
abi_grows!(chassis_shard_rule_t, CHASSIS_SHARD_RULE_V1_SIZE);

abi_struct! { chassis_shards_t 80 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 gather: Option<unsafe extern "C" fn(
        *const chassis_shards_t,
        *const u32,
        u32,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    24 8 wait_gathered: Option<unsafe extern "C" fn(*const chassis_shards_t, *const u32, u32) -> *mut chassis_status_t>,
    32 8 release: Option<unsafe extern "C" fn(*const chassis_shards_t, *const u32, u32) -> *mut chassis_status_t>,
    40 8 shrink: Option<unsafe extern "C" fn(*const chassis_shards_t, *const u32, u32, u32) -> *mut chassis_status_t>,
    48 8 reduce: Option<unsafe extern "C" fn(
        *const chassis_shards_t,
        *const u32,
        u32,
        u32,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    56 8 wait_reduced: Option<unsafe extern "C" fn(*const chassis_shards_t, *const u32, u32) -> *mut chassis_status_t>,
    64 8 is_whole: Option<unsafe extern "C" fn(*const chassis_shards_t, u32) -> i32>,
    72 8 gathered_bytes: Option<unsafe extern "C" fn(*const chassis_shards_t) -> u64>,
} }
abi_grows!(chassis_shards_t, CHASSIS_SHARDS_V1_SIZE);

abi_struct! { chassis_sink_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 start: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_sink_start_t,
    ) -> *mut chassis_status_t>,
    16 8 scalars: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_scalars_t,
    ) -> *mut chassis_status_t>,
    24 8 text: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_sink_text_t,
    ) -> *mut chassis_status_t>,
    32 8 flush: Option<unsafe extern "C" fn(*mut chassis_instance_t) -> *mut chassis_status_t>,
    40 8 finish: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_sink_finish_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_sink_t, CHASSIS_SINK_V1_SIZE);

abi_struct! { chassis_sink_finish_t 32 8 {
    0 4 struct_size: u32,
    4 4 outcome: u32,
    8 8 step: i64,
    16 8 time: f64,
    24 8 num_dropped: u64,
} }
abi_grows!(chassis_sink_finish_t, CHASSIS_SINK_FINISH_V1_SIZE);

abi_struct! { chassis_sink_start_t 88 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 16 run_name: chassis_str_t,
    24 16 output_dir: chassis_str_t,
    40 16 config: chassis_str_t,
    56 8 first_step: i64,
    64 8 max_steps: i64,
    72 8 time: f64,
    80 8 page: *const chassis_run_page_t,
} }
abi_grows!(chassis_sink_start_t, CHASSIS_SINK_START_V1_SIZE);

abi_struct! { chassis_sink_text_t 56 8 {
    0 4 struct_size: u32,
    4 4 r#type: u32,
    8 8 step: i64,
    16 8 time: f64,
    24 16 name: chassis_str_t,
    40 16 text: chassis_str_t,
} }
abi_grows!(chassis_sink_text_t, CHASSIS_SINK_TEXT_V1_SIZE);

abi_struct! { chassis_slot_desc_t 72 8 {
    0 4 struct_size: u32,
    4 4 num_axes: u32,
    8 16 name: chassis_str_t,
    24 8 axes: *const chassis_axis_t,
    32 4 role: u32,
    36 4 init: u32,
    40 8 init_std: f64,
    48 16 tied_to: chassis_str_t,
    64 8 lr_scale: f64,
} }
abi_grows!(chassis_slot_desc_t, CHASSIS_SLOT_DESC_V1_SIZE);

abi_struct! { chassis_stage_problem_t 48 8 {
    0 4 struct_size: u32,
    4 4 num_axes: u32,
    8 8 axes: *const chassis_mesh_axis_t,
    16 4 num_units: u32,
    20 4 num_microbatches: u32,
    24 8 unit_names: *const chassis_str_t,
    32 8 unit_costs: *const f64,
    40 4 first_layer: u32,
    44 4 end_layer: u32,
} }
abi_grows!(chassis_stage_problem_t, CHASSIS_STAGE_PROBLEM_V1_SIZE);

abi_struct! { chassis_stage_sink_t 48 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 named: Option<unsafe extern "C" fn(
        *const chassis_stage_sink_t,
        chassis_str_t,
        chassis_str_t,
        u32,
        u32,
    ) -> *mut chassis_status_t>,
    24 8 csv: Option<unsafe extern "C" fn(
        *const chassis_stage_sink_t,
        chassis_str_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    32 8 lists: Option<unsafe extern "C" fn(
        *const chassis_stage_sink_t,
        chassis_str_t,
        *const u32,
        u32,
        *const *const chassis_work_t,
        *const u32,
    ) -> *mut chassis_status_t>,
    40 8 layers: Option<unsafe extern "C" fn(*const chassis_stage_sink_t, *const i64, u32) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_stage_sink_t, CHASSIS_STAGE_SINK_V1_SIZE);

abi_struct! { chassis_state_desc_t 48 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 16 role: chassis_str_t,
    24 4 shape: u32,
    28 4 granularity: u32,
    32 8 block: i64,
    40 8 initial: f64,
} }
abi_grows!(chassis_state_desc_t, CHASSIS_STATE_DESC_V1_SIZE);

abi_struct! { chassis_store_t 40 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 set: Option<unsafe extern "C" fn(
        *const chassis_store_t,
        chassis_str_t,
        chassis_str_t,
    ) -> *mut chassis_status_t>,
    24 8 get: Option<unsafe extern "C" fn(
        *const chassis_store_t,
        chassis_str_t,
        u64,
        Option<unsafe extern "C" fn(*mut c_void, chassis_str_t)>,
        *mut c_void,
    ) -> *mut chassis_status_t>,
    32 8 add: Option<unsafe extern "C" fn(
        *const chassis_store_t,
        chassis_str_t,
        i64,
        *mut i64,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_store_t, CHASSIS_STORE_V1_SIZE);

abi_struct! { chassis_str_t 16 8 {
    0 8 ptr: *const u8,
    8 8 len: u64,
} }

abi_struct! { chassis_task_t 32 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 num_threads: Option<unsafe extern "C" fn(*const chassis_task_t) -> u32>,
    24 8 parallel_for: Option<unsafe extern "C" fn(
        *const chassis_task_t,
        i64,
        i64,
        Option<unsafe extern "C" fn(*mut c_void, i64, i64)>,
        *mut c_void,
    )>,
} }
abi_grows!(chassis_task_t, CHASSIS_TASK_V1_SIZE);

abi_struct! { chassis_tensor_service_t 72 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 view: Option<unsafe extern "C" fn(chassis_tensor_t, *mut chassis_tensor_view_t)>,
    24 8 create: Option<unsafe extern "C" fn(
        *const chassis_tensor_service_t,
        u32,
        u32,
        i32,
        u32,
        *const i64,
        *mut chassis_tensor_t,
    ) -> *mut chassis_status_t>,
    32 8 from_memory: Option<unsafe extern "C" fn(
        *const chassis_tensor_service_t,
        *mut c_void,
        u32,
        u32,
        i32,
        u32,
        *const i64,
        Option<unsafe extern "C" fn(*mut c_void)>,
        *mut c_void,
        *mut chassis_tensor_t,
    ) -> *mut chassis_status_t>,
    40 8 retain: Option<unsafe extern "C" fn(
        *const chassis_tensor_service_t,
        chassis_tensor_t,
        *mut chassis_tensor_t,
    ) -> *mut chassis_status_t>,
    48 8 release: Option<unsafe extern "C" fn(*const chassis_tensor_service_t, chassis_tensor_t)>,
    56 8 to_dlpack: Option<unsafe extern "C" fn(
        *const chassis_tensor_service_t,
        chassis_tensor_t,
        *mut *mut DLManagedTensorVersioned,
    ) -> *mut chassis_status_t>,
    64 8 from_dlpack: Option<unsafe extern "C" fn(
        *const chassis_tensor_service_t,
        *mut DLManagedTensorVersioned,
        *mut chassis_tensor_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_tensor_service_t, CHASSIS_TENSOR_SERVICE_V1_SIZE);

abi_struct! { chassis_tensor_view_t 56 8 {
    0 4 struct_size: u32,
    4 4 dtype: u32,
    8 4 device_type: u32,
    12 4 device_index: i32,
    16 8 data: *mut c_void,
    24 8 num_elements: i64,
    32 4 num_dims: u32,
    36 4 is_contiguous: u32,
    40 8 sizes: *const i64,
    48 8 strides: *const i64,
} }
abi_grows!(chassis_tensor_view_t, CHASSIS_TENSOR_VIEW_V1_SIZE);

abi_struct! { chassis_text_sink_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 text: Option<unsafe extern "C" fn(*const chassis_text_sink_t, chassis_str_t)>,
} }
abi_grows!(chassis_text_sink_t, CHASSIS_TEXT_SINK_V1_SIZE);

abi_struct! { chassis_text_source_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 next: Option<unsafe extern "C" fn(
        *const chassis_text_source_t,
        *mut chassis_str_t,
        *mut u32,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_text_source_t, CHASSIS_TEXT_SOURCE_V1_SIZE);

abi_struct! { chassis_tile_t 24 8 {
    0 4 queries: u32,
    4 4 keys: u32,
    8 8 shared_forward_bytes: u64,
    16 8 shared_backward_bytes: u64,
} }

abi_struct! { chassis_token_t 24 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 16 text: chassis_str_t,
} }
abi_grows!(chassis_token_t, CHASSIS_TOKEN_V1_SIZE);

abi_struct! { chassis_token_sink_t 24 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 r#impl: *mut c_void,
    16 8 tokens: Option<unsafe extern "C" fn(
        *const chassis_token_sink_t,
        u64,
        *const i32,
        *const u64,
        *const u64,
        u64,
    )>,
} }
abi_grows!(chassis_token_sink_t, CHASSIS_TOKEN_SINK_V1_SIZE);

abi_struct! { chassis_tokenizer_t 72 8 {
    0 4 struct_size: u32,
    4 4 reserved0: u32,
    8 8 open: Option<unsafe extern "C" fn(*mut chassis_instance_t, chassis_str_t) -> *mut chassis_status_t>,
    16 8 info: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *mut chassis_tokenizer_info_t,
    ) -> *mut chassis_status_t>,
    24 8 encode: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_str_t,
        u64,
        u32,
        *const chassis_token_sink_t,
    ) -> *mut chassis_status_t>,
    32 8 decode: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const i32,
        u64,
        u32,
        *const chassis_text_sink_t,
    ) -> *mut chassis_status_t>,
    40 8 token: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        i32,
        *mut chassis_token_t,
    ) -> *mut chassis_status_t>,
    48 8 id_of: Option<unsafe extern "C" fn(*mut chassis_instance_t, chassis_str_t, *mut i32) -> *mut chassis_status_t>,
    56 8 render: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_chat_t,
        *const chassis_chat_sink_t,
    ) -> *mut chassis_status_t>,
    64 8 train: Option<unsafe extern "C" fn(
        *mut chassis_instance_t,
        *const chassis_vocabulary_t,
        *const chassis_text_source_t,
        *const chassis_file_sink_t,
    ) -> *mut chassis_status_t>,
} }
abi_grows!(chassis_tokenizer_t, CHASSIS_TOKENIZER_V1_SIZE);

abi_struct! { chassis_tokenizer_info_t 64 8 {
    0 4 struct_size: u32,
    4 4 flags: u32,
    8 4 bos_id: i32,
    12 4 eos_id: i32,
    16 4 pad_id: i32,
    20 4 unk_id: i32,
    24 8 vocab_size: i64,
    32 16 fingerprint: chassis_str_t,
    48 16 chat_template: chassis_str_t,
} }
abi_grows!(chassis_tokenizer_info_t, CHASSIS_TOKENIZER_INFO_V1_SIZE);

abi_struct! { chassis_vocabulary_t 24 8 {
    0 4 struct_size: u32,
    4 4 num_threads: u32,
    8 8 vocab_size: i64,
    16 8 min_frequency: u64,
} }
abi_grows!(chassis_vocabulary_t, CHASSIS_VOCABULARY_V1_SIZE);

abi_struct! { chassis_work_t 12 4 {
    0 4 kind: u32,
    4 4 chunk: u32,
    8 4 microbatch: u32,
} }
