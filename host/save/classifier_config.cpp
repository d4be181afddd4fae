// Reads and writes the keys of config.json that concern the head.
#include "host/save/classifier_config.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/objective_pass.hpp"

namespace chassis {
namespace {

constexpr std::string_view kClassifier = "ForSequenceClassification";
constexpr std::string_view kManifestKey = "score_head";
constexpr int64_t kMostLabels = 1 << 20;

std::string architecture_of(const Json& config) {
  const auto names = config.find("architectures");
  if (names == config.end() || !names->is_array() || names->empty() || !names->front().is_string()) return "";
  return names->front().get<std::string>();
}

std::string classifier_named_like(std::string architecture) {
  for (const std::string_view end : {"ForCausalLM", "LMHeadModel", "Model"})
    if (architecture.ends_with(end)) {
      architecture.resize(architecture.size() - end.size());
      break;
    }
  return architecture + std::string(kClassifier);
}

// The names in id2label, in the order of the labels; empty unless it has all of them.
std::vector<std::string> labels_in(const Json& config, int64_t num_labels) {
  std::vector<std::string> labels;
  const auto names = config.find("id2label");
  if (names == config.end() || !names->is_object() || static_cast<int64_t>(names->size()) != num_labels) return labels;
  for (int64_t i = 0; i < num_labels; ++i) {
    const auto name = names->find(std::to_string(i));
    if (name == names->end() || !name->is_string()) return {};
    labels.push_back(name->get<std::string>());
  }
  return labels;
}

}  // namespace

std::string problem_type_of(int64_t num_scores, int64_t num_targets, int64_t num_classes) {
  if (num_classes == 0) return "regression";
  const bool is_one_class = num_targets == 1 && num_classes == num_scores;
  return is_one_class ? "single_label_classification" : "multi_label_classification";
}

std::string default_problem_type(int64_t num_labels) {
  return num_labels == 1 ? "regression" : "single_label_classification";
}

bool is_classifier(std::string_view architecture) { return architecture.ends_with(kClassifier); }

void make_classifier(Json& config, const ScoreHead& head, std::span<const std::string> known) {
  CHASSIS_CHECK(head.num_labels > 0 && (head.labels.empty() || std::cmp_equal(head.labels.size(), head.num_labels)),
                "a head has a name for each of its labels, or none");
  const std::string was = architecture_of(config);
  if (!is_classifier(was)) {
    const auto own = std::ranges::find_if(known, is_classifier);
    config["architectures"] = {own != known.end() ? *own : classifier_named_like(was)};
  }
  std::vector<std::string> labels = head.labels.empty() ? labels_in(config, head.num_labels) : head.labels;
  for (auto i = static_cast<int64_t>(labels.size()); i < head.num_labels; ++i)
    labels.push_back("LABEL_" + std::to_string(i));
  Json by_id = Json::object(), by_name = Json::object();
  for (size_t i = 0; i < labels.size(); ++i) {
    by_id[std::to_string(i)] = labels[i];
    by_name[labels[i]] = i;
  }
  config["num_labels"] = head.num_labels;
  config["id2label"] = std::move(by_id);
  config["label2id"] = std::move(by_name);
  config["problem_type"] = head.problem_type;
  if (head.pad_id >= 0) config["pad_token_id"] = head.pad_id;
}

std::optional<ScoreHead> head_in_config(const Json& config, const std::string& where) {
  if (!config.is_object() || !is_classifier(architecture_of(config))) return std::nullopt;
  ScoreHead head;
  const auto labels = config.find("id2label");
  const bool has_labels = labels != config.end() && labels->is_object();
  // transformers' default is 2 labels, which it does not write.
  head.num_labels =
      json_int_or(config, "num_labels", has_labels ? static_cast<int64_t>(labels->size()) : int64_t{2}, where);
  if (head.num_labels < 1 || head.num_labels > kMostLabels)
    throw config_error(where + ": num_labels is " + std::to_string(head.num_labels) + ", expected 1 to " +
                       std::to_string(kMostLabels));
  head.problem_type = json_string_or(config, "problem_type", default_problem_type(head.num_labels), where);
  head.labels = labels_in(config, head.num_labels);
  head.pad_id = json_int_or(config, "pad_token_id", -1, where);
  return head;
}

void add_head(Json& about, const ScoreHead& head) {
  about[kManifestKey] = {{"num_labels", head.num_labels},
                         {"problem_type", head.problem_type},
                         {"labels", head.labels},
                         {"pad_token_id", head.pad_id}};
}

std::optional<ScoreHead> head_in_manifest(const Json& about, const std::string& where) {
  const auto found = about.is_object() ? about.find(kManifestKey) : about.end();
  if (found == about.end()) return std::nullopt;
  const std::string file = where + "/manifest.json";
  ScoreHead head{json_int(*found, "num_labels", file), json_string(*found, "problem_type", file)};
  for (const Json& label : json_at(*found, "labels", file))
    if (label.is_string()) head.labels.push_back(label.get<std::string>());
  head.pad_id = json_int(*found, "pad_token_id", file);
  const bool has_all = head.labels.empty() || std::cmp_equal(head.labels.size(), head.num_labels);
  if (head.num_labels < 1 || head.num_labels > kMostLabels || !has_all)
    throw storage_error(file + ": " + std::string(kManifestKey) + " has " + std::to_string(head.num_labels) +
                        " labels and " + std::to_string(head.labels.size()) + " names");
  return head;
}

std::optional<ScoreHead> head_of(const Session& session) {
  const int64_t num_labels = num_scores(session.program());
  if (num_labels == 0) return std::nullopt;
  ScoreHead head{num_labels, default_problem_type(num_labels)};
  const Json config = parse_json(session.model().plugin().config(), "the model's config", ExitCode::kPlugin);
  if (const auto own = head_in_config(config, "the model's config"); own && own->num_labels == num_labels) head = *own;
  head.pad_id = -1;
  if (const RunObjective* const objective = session.objective()) {
    const ObjectiveDesc& desc = objective->desc();
    head.problem_type = problem_type_of(desc.num_scores, desc.num_targets, desc.num_classes);
  }
  const SettingList& classes = session.settings().data.classes;
  if (classes.is_set() && std::cmp_equal(classes->size(), num_labels)) head.labels = classes;
  return head;
}

}  // namespace chassis
