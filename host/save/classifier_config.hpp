// A model with a head of scores, as transformers' ...ForSequenceClassification describes it in config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/session/session.hpp"

namespace chassis {

struct ScoreHead {
  int64_t num_labels = 0;
  // "regression", "single_label_classification" or "multi_label_classification". Programs that apply a sigmoid to the
  // score of one label leave it as it is under "regression".
  std::string problem_type;
  std::vector<std::string> labels = {};  // their names, num_labels of them; empty: those of config.json, else LABEL_0 …
  int64_t pad_id = -1;                   // a token that never ends a sequence; -1: that of config.json
};

// problem_type for the shapes of an objective's scores and targets, as in chassis_objective_desc_t.
std::string problem_type_of(int64_t num_scores, int64_t num_targets, int64_t num_classes);
// The same if only the number of labels is known.
std::string default_problem_type(int64_t num_labels);

// Whether an architecture of transformers has a head of scores.
bool is_classifier(std::string_view architecture);

// Turns the config.json of a language model into that of a classifier, or updates that of a classifier. `known`: the
// architectures that the model's plugin reads; if none of them is a classifier, the name is that of the language model
// with another end.
void make_classifier(Json& config, const ScoreHead& head, std::span<const std::string> known);
// The head that a config.json describes; nothing if it is not one of a classifier. `where` names the file.
std::optional<ScoreHead> head_in_config(const Json& config, const std::string& where);

// A manifest's `about` of an adapter, whose files have no config.json.
void add_head(Json& about, const ScoreHead& head);
std::optional<ScoreHead> head_in_manifest(const Json& about, const std::string& where);

// The head of the session's program, without pad_id; nothing if it gives no scores.
std::optional<ScoreHead> head_of(const Session& session);

}  // namespace chassis
