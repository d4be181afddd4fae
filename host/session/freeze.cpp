#include "host/session/freeze.hpp"

#include <vector>

#include "host/base/pattern.hpp"

namespace chassis {

void freeze(const Config& config, ParameterTable& parameters) {
  const auto patterns_of = [&](const std::string& key) {
    const std::vector<std::string> texts = config.get_list(key);
    return std::vector<Pattern>(texts.begin(), texts.end());
  };
  const std::vector<Pattern> frozen = patterns_of("freeze.patterns"), trained = patterns_of("freeze.train_only");
  // Whether any of them is found in the name; counts each, since one that is never found is a mistake.
  const auto any_found = [&](const std::vector<Pattern>& patterns, const std::string& key, const std::string& name,
                             std::vector<size_t>& uses) {
    bool any = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      try {
        if (!patterns[i].found_in(name)) continue;
      } catch (const Error& e) {
        const std::string item = key + "." + std::to_string(i);
        throw Error(ExitCode::kConfig, config.position(item), item + ": " + e.message()).hint(e.hint_text());
      }
      ++uses[i];
      any = true;
    }
    return any;
  };
  std::vector<size_t> uses(frozen.size()), train_uses(trained.size());
  for (const auto& p : parameters.all()) {
    if (any_found(frozen, "freeze.patterns", p->name, uses)) p->trainable = false;
    if (!trained.empty() && !any_found(trained, "freeze.train_only", p->name, train_uses)) p->trainable = false;
  }
  const auto refuse_unused = [&](const std::string& key, const std::vector<Pattern>& patterns,
                                 const std::vector<size_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) continue;
      const std::string item = key + "." + std::to_string(i);
      throw Error(ExitCode::kConfig, config.position(item),
                  key + ": \"" + patterns[i].text() + "\" matches no parameter")
          .hint("names look like " + parameters.all().front()->name);
    }
  };
  refuse_unused("freeze.patterns", frozen, uses);
  refuse_unused("freeze.train_only", trained, train_uses);
  if (parameters.num_elements(true) == 0)
    throw Error(ExitCode::kConfig, config.position("freeze"), "[freeze] leaves no parameter to train");
}

}  // namespace chassis
