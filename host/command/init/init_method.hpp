// The methods that `chassis init --method` knows in addition to full, lora and qlora: a task with an objective, and
// what its users commonly set.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "host/config/choices.hpp"

namespace chassis {

struct InitLine {
  std::string_view assignment;  // "beta = 0.1"
  std::string_view comment;     // empty: none
};

struct InitMethod {
  std::string_view name;  // of --method
  Task task;
  DataFormat format;                // of its rows
  std::string_view plugin;          // of [objective]
  std::string_view lr, adapter_lr;  // without and with an adapter
  uint64_t epochs;
  std::span<const InitLine> options;  // of [objective], without those that depend on the data
};

std::span<const InitMethod> init_methods();
// NULL for any other name.
const InitMethod* find_init_method(std::string_view name);
// The usual method for rows of the format, of any task or of the given one; NULL if there is none.
const InitMethod* usual_init_method(DataFormat format);
const InitMethod* usual_init_method(DataFormat format, Task task);

// The words of --method.
struct MethodWords {
  std::string weights;                    // "full", "lora" or "qlora"; empty: not given
  const InitMethod* objective = nullptr;  // NULL: not given
};
// "dpo", "lora" or both as "dpo,lora". Throws a config error for any other text.
MethodWords method_words(const std::string& text);
// "full, lora, qlora, dpo, …"
std::string method_names();

}  // namespace chassis
