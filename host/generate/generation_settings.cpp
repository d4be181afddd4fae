// Each value comes from the user, else from the file, else it is neutral.
#include "host/generate/generation_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "host/base/log.hpp"

namespace chassis {
namespace {

class Chosen {
 public:
  template <class T>
  T operator()(const Setting<T>& setting, std::string_view name, const std::optional<T>& in_file, T neutral) {
    if (setting.is_set()) return setting;
    if (!in_file) return neutral;
    add(fmt::format("{} {}", name, *in_file));
    return *in_file;
  }
  void add(const std::string& part) { text_ += (text_.empty() ? "" : ", ") + part; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The configuration alone does not show this, because generation_config.json may request sampling.
template <class T>
void refuse_without_effect(const Setting<T>& setting, T neutral) {
  if (!setting.is_set() || *setting == neutral) return;
  throw config_error(setting, fmt::format("{} = {} has no effect at temperature 0, which takes the most likely token",
                                          setting.key(), *setting))
      .hint("set generate.temperature too, such as 1.0, or remove this key");
}

// 0 unless the user or the file asks for sampling.
double temperature_of(const Settings::Generate& wanted, const GenerationConfig& file, Chosen& chosen) {
  if (wanted.temperature.is_set() || file.path.empty()) return wanted.temperature.is_set() ? *wanted.temperature : 0.0;
  if (file.do_sample.value_or(false)) return chosen(wanted.temperature, "temperature", file.temperature, 1.0);
  if (file.do_sample) chosen.add("do_sample false, the most likely token");
  return 0.0;
}

}  // namespace

GenerationConfig generation_config_of(const Settings& settings) {
  return settings.model.path.is_set() ? read_generation_config(settings.model.path) : GenerationConfig();
}

GenerationSettings generation_settings(const Settings& settings, const GenerationConfig& file,
                                       const Tokenizer& tokenizer) {
  const Settings::Generate& wanted = settings.generate;
  GenerationSettings made;
  Chosen chosen;
  SamplingOptions& sampling = made.options.sampling;
  sampling.temperature = temperature_of(wanted, file, chosen);
  if (sampling.temperature > 0.0) {
    sampling.top_k = chosen(wanted.top_k, "top_k", file.top_k, int64_t{0});
    sampling.top_p = chosen(wanted.top_p, "top_p", file.top_p, 1.0);
    sampling.min_p = chosen(wanted.min_p, "min_p", file.min_p, 0.0);
  } else {
    refuse_without_effect(wanted.top_k, int64_t{0});
    refuse_without_effect(wanted.top_p, 1.0);
    refuse_without_effect(wanted.min_p, 0.0);
  }
  sampling.repetition_penalty = chosen(wanted.repetition_penalty, "repetition_penalty", file.repetition_penalty, 1.0);
  made.options.max_new_tokens =
      chosen(wanted.max_new_tokens, "max_new_tokens", file.max_new_tokens, made.options.max_new_tokens);
  made.options.seed = static_cast<uint64_t>(*settings.run.seed);
  made.options.vocab_size = tokenizer.vocab_size();
  std::vector<int32_t>& stops = made.options.stop_ids;
  stops = stop_ids_of(file, tokenizer.vocab_size());
  if (!stops.empty()) chosen.add(fmt::format("stops at {}", fmt::join(stops, " ")));
  const int32_t eos = tokenizer.eos_id();
  if (eos >= 0 && std::find(stops.begin(), stops.end(), eos) == stops.end()) stops.push_back(eos);
  made.stop_texts = wanted.stop;
  if (stops.empty() && made.stop_texts.empty())
    counted_warning("generation without an end",
                    "the tokenizer has no EOS (eos_token), and generation_config.json names none: texts end only at "
                    "generate.max_new_tokens");
  if (!chosen.text().empty()) made.from_file = file.path + ": " + chosen.text();
  for (const std::string& key : file.unused_keys)
    counted_warning("generation_config.json: " + key, file.path + ": '" + key + "' is not used here");
  return made;
}

}  // namespace chassis
