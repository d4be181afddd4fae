// Feeds text to the reader of PEFT's adapter_config.json. What is accepted must survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "chassis/guard.hpp"
#include "plugins/adapter/lora/peft_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  constexpr std::string_view kModules[] = {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj",
                                           "lm_head"};
  lora::Settings settings;
  try {
    settings = lora::settings_from_peft(text, {});
  } catch (const chassis::Failure&) {  // refused with a message, as it should be
    return 0;
  }
  lora::PeftNames names;
  for (const std::string_view module : kModules) {
    for (const auto* patterns : {&settings.targets, &settings.exclude, &settings.modules_to_save})
      for (const lora::NamePattern& pattern : *patterns)
        if (pattern.matches(module)) names.target_modules.emplace_back(module);
    names.rank_pattern.emplace_back(module, settings.rank_of(module));
  }
  if (names.target_modules.empty()) names.target_modules.emplace_back("q_proj");
  const lora::Settings again = lora::settings_from_peft(lora::peft_config(settings, names, "base", text), {});
  if (again.rank != settings.rank || again.use_rslora != settings.use_rslora || again.alpha != settings.alpha)
    std::abort();
  for (const std::string_view module : kModules)
    if (again.rank_of(module) != settings.rank_of(module)) std::abort();
  return 0;
}
