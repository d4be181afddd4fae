// Adapts chassis.tokenizer/1 to what the host needs of chassis.tokenizer/2, for plugins that were made before ABI 0.4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "chassis/kind/tokenizer.h"
#include "chassis/kind/tokenizer_1.h"
#include "host/data/tokenizer.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

// Documents begin with bos_id if there is one; there is no chat template.
chassis_tokenizer_info_2_t info_v1(const chassis_tokenizer_t& table, const Instance& instance);
// Version 1 says only where ids begin, so an id ends at the next greater begin offset. It never looks for special
// tokens.
Encoding encode_v1(const chassis_tokenizer_t& table, const Instance& instance, std::string_view text);
// Without special tokens.
std::string decode_v1(const chassis_tokenizer_t& table, const Instance& instance, std::span<const int32_t> ids);

}  // namespace chassis
