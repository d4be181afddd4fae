// The first size of every struct that may grow, by type.
#pragma once

#include "chassis/comm.h"
#include "chassis/host.h"
#include "chassis/kind/adapter.h"
#include "chassis/kind/comm.h"
#include "chassis/kind/format.h"
#include "chassis/kind/model.h"
#include "chassis/kind/model_1.h"
#include "chassis/kind/ops.h"
#include "chassis/kind/optimizer.h"
#include "chassis/kind/optimizer_1.h"
#include "chassis/kind/parallel.h"
#include "chassis/kind/quant.h"
#include "chassis/kind/rows.h"
#include "chassis/kind/tokenizer.h"
#include "chassis/kind/tokenizer_1.h"
#include "chassis/namespace.hpp"
#include "chassis/plugin.h"
#include "chassis/service/comm.h"
#include "chassis/service/dispatch.h"
#include "chassis/service/gemm.h"
#include "chassis/service/log.h"
#include "chassis/service/members.h"
#include "chassis/service/memory.h"
#include "chassis/service/metrics.h"
#include "chassis/service/options.h"
#include "chassis/service/rng.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"
#include "chassis/tensor.h"

CHASSIS_SDK_BEGIN

template <typename T>
inline constexpr uint32_t kFirstSize = T::grows_but_is_not_listed_here;

#define CHASSIS_SDK_FIRST_SIZE(type, size) \
  template <>                              \
  inline constexpr uint32_t kFirstSize<type> = size;
CHASSIS_SDK_FIRST_SIZE(chassis_collective_t, CHASSIS_COLLECTIVE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_host_t, CHASSIS_HOST_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_store_t, CHASSIS_STORE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_parameter_t, CHASSIS_ADAPTER_PARAMETER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_op_t, CHASSIS_ADAPTER_OP_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_builder_t, CHASSIS_ADAPTER_BUILDER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_tensor_t, CHASSIS_ADAPTER_TENSOR_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_merge_t, CHASSIS_ADAPTER_MERGE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_base_t, CHASSIS_ADAPTER_BASE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_adapter_t, CHASSIS_ADAPTER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_comm_group_desc_t, CHASSIS_COMM_GROUP_DESC_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_comm_backend_t, CHASSIS_COMM_BACKEND_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_disk_tensor_t, CHASSIS_DISK_TENSOR_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_save_request_t, CHASSIS_SAVE_REQUEST_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_layout_sink_t, CHASSIS_LAYOUT_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_finish_sink_t, CHASSIS_FINISH_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_directory_t, CHASSIS_DIRECTORY_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_scan_sink_t, CHASSIS_SCAN_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_format_t, CHASSIS_FORMAT_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_slot_desc_t, CHASSIS_SLOT_DESC_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_op_desc_t, CHASSIS_OP_DESC_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_builder_2_t, CHASSIS_BUILDER_2_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_builder_t, CHASSIS_BUILDER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_text_sink_t, CHASSIS_TEXT_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_disk_part_t, CHASSIS_DISK_PART_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_disk_rule_t, CHASSIS_DISK_RULE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_literal_t, CHASSIS_LITERAL_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_disk_sink_t, CHASSIS_DISK_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_model_2_t, CHASSIS_MODEL_2_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_model_t, CHASSIS_MODEL_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_component_t, CHASSIS_COMPONENT_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_operand_t, CHASSIS_OPERAND_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_op_view_t, CHASSIS_OP_VIEW_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_node_t, CHASSIS_NODE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_infer_t, CHASSIS_INFER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_call_t, CHASSIS_CALL_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_ops_t, CHASSIS_OPS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_state_desc_t, CHASSIS_STATE_DESC_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_optimizer_step_t, CHASSIS_OPTIMIZER_STEP_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_optimizer_parameter_t, CHASSIS_OPTIMIZER_PARAMETER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_optimizer_2_t, CHASSIS_OPTIMIZER_2_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_optimizer_t, CHASSIS_OPTIMIZER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_parallel_parameter_t, CHASSIS_PARALLEL_PARAMETER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_parallel_problem_t, CHASSIS_PARALLEL_PROBLEM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_shard_rule_t, CHASSIS_SHARD_RULE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_stage_problem_t, CHASSIS_STAGE_PROBLEM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_stage_sink_t, CHASSIS_STAGE_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_parallel_sink_t, CHASSIS_PARALLEL_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_shards_t, CHASSIS_SHARDS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_parallel_t, CHASSIS_PARALLEL_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_division_problem_t, CHASSIS_DIVISION_PROBLEM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_division_sink_t, CHASSIS_DIVISION_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_quant_parameter_t, CHASSIS_QUANT_PARAMETER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_quant_storage_t, CHASSIS_QUANT_STORAGE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_quant_part_t, CHASSIS_QUANT_PART_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_quant_t, CHASSIS_QUANT_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_row_file_info_t, CHASSIS_ROW_FILE_INFO_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_row_sink_t, CHASSIS_ROW_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_rows_read_t, CHASSIS_ROWS_READ_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_rows_t, CHASSIS_ROWS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tokenizer_info_2_t, CHASSIS_TOKENIZER_INFO_2_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_token_t, CHASSIS_TOKEN_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_token_sink_t, CHASSIS_TOKEN_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_chat_t, CHASSIS_CHAT_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_chat_span_t, CHASSIS_CHAT_SPAN_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_chat_sink_t, CHASSIS_CHAT_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_text_source_t, CHASSIS_TEXT_SOURCE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_file_sink_t, CHASSIS_FILE_SINK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_vocabulary_t, CHASSIS_VOCABULARY_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tokenizer_2_t, CHASSIS_TOKENIZER_2_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tokenizer_info_t, CHASSIS_TOKENIZER_INFO_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tokenizer_t, CHASSIS_TOKENIZER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_instance_t, CHASSIS_INSTANCE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_member_t, CHASSIS_MEMBER_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_factory_t, CHASSIS_FACTORY_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_comm_t, CHASSIS_COMM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_dispatch_t, CHASSIS_DISPATCH_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_gemm_problem_t, CHASSIS_GEMM_PROBLEM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_gemm_t, CHASSIS_GEMM_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_log_t, CHASSIS_LOG_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_members_t, CHASSIS_MEMBERS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_memory_t, CHASSIS_MEMORY_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_metrics_t, CHASSIS_METRICS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_option_t, CHASSIS_OPTION_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_options_t, CHASSIS_OPTIONS_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_rng_t, CHASSIS_RNG_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_task_t, CHASSIS_TASK_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tensor_service_t, CHASSIS_TENSOR_SERVICE_V1_SIZE)
CHASSIS_SDK_FIRST_SIZE(chassis_tensor_view_t, CHASSIS_TENSOR_VIEW_V1_SIZE)
#undef CHASSIS_SDK_FIRST_SIZE

CHASSIS_SDK_END
