// Applies the patterns of [freeze] to the names of parameters.
#include "host/session/freeze.hpp"

#include <vector>

#include "host/base/pattern.hpp"

namespace chassis {

void freeze(const Settings::Freeze& settings, ParameterTable& parameters) {
  const auto patterns_of = [](const SettingList& texts) { return std::vector<Pattern>(texts->begin(), texts->end()); };
  const std::vector<Pattern> frozen = patterns_of(settings.patterns), trained = patterns_of(settings.train_only);
  // Whether any pattern matches the name. Counts the matches of each, since a pattern without a match is an error.
  const auto any_found = [&](const std::vector<Pattern>& patterns, const SettingList& setting, const std::string& name,
                             std::vector<size_t>& uses) {
    bool any = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      try {
        if (!patterns[i].found_in(name)) continue;
      } catch (const Error& e) {
        const std::string item = std::to_string(i);
        throw Error(ExitCode::kConfig, setting.where_of(item), setting.key_of(item) + ": " + e.message())
            .hint(e.hint_text());
      }
      ++uses[i];
      any = true;
    }
    return any;
  };
  std::vector<size_t> uses(frozen.size()), train_uses(trained.size());
  for (const auto& p : parameters.all()) {
    if (any_found(frozen, settings.patterns, p->name, uses)) {
      if (p->of_objective)
        throw config_error(settings.patterns, settings.patterns.key() + " matches '" + p->name +
                                                  "', the head of scores that this run adds: it is always trained")
            .hint("leave it out of the patterns");
      p->trainable = false;
    }
    if (trained.empty()) continue;
    const bool is_trained = any_found(trained, settings.train_only, p->name, train_uses);
    if (is_trained && p->is_quantized())
      throw config_error(settings.train_only, settings.train_only.key() + " matches '" + p->name +
                                                  "', which [quant] stores as " + p->storage->scheme() +
                                                  ": quantized parameters cannot be trained")
          .hint("leave it out of train_only, or of [quant] with quant.skip");
    if (!is_trained && !p->of_objective) p->trainable = false;
  }
  const auto refuse_unused = [&](const SettingList& setting, const std::vector<Pattern>& patterns,
                                 const std::vector<size_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) continue;
      throw Error(ExitCode::kConfig, setting.where_of(std::to_string(i)),
                  setting.key() + ": \"" + patterns[i].text() + "\" matches no parameter")
          .hint("names look like " + parameters.all().front()->name);
    }
  };
  refuse_unused(settings.patterns, frozen, uses);
  refuse_unused(settings.train_only, trained, train_uses);
  if (parameters.num_elements(true) == 0) throw config_error(settings, "[freeze] leaves no parameter to train");
}

void freeze_all(ParameterTable& parameters) {
  for (const auto& p : parameters.all()) p->trainable = false;
}

}  // namespace chassis
