// The families of this folder, one per plugin.
#pragma once

#include "decoder.hpp"

namespace decoder {

const Family& deepseek_v2();
const Family& gemma2();
const Family& gemma3();
const Family& llama();
const Family& llama4();
const Family& mistral();
const Family& mixtral();
const Family& olmoe();
const Family& phi3();
const Family& qwen2();
const Family& qwen2_moe();
const Family& qwen3();
const Family& qwen3_moe();

}  // namespace decoder
