// The table of tasks: what follows from train.task. A new task is its name in choices.hpp and a row here.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "host/config/choices.hpp"

namespace chassis {

struct TaskSpec {
  Task task;
  // Rows are conversations, or prompts with answers, of which only the answers are trained. Otherwise they are
  // documents.
  bool has_answers;
  // The default of objective.plugin. Empty: the task minimises the cross entropy of tokens, and there is no
  // [objective].
  std::string_view objective;
  bool has_scores;                      // the model has a head of scores in place of its head over the vocabulary
  std::span<const DataFormat> formats;  // of its data sets
};

inline constexpr DataFormat kDocumentFormats[] = {DataFormat::kText, DataFormat::kTokens};
inline constexpr DataFormat kAnswerFormats[] = {
    DataFormat::kText,     DataFormat::kAlpaca,           DataFormat::kShareGpt,
    DataFormat::kMessages, DataFormat::kPromptCompletion, DataFormat::kSegments,
    DataFormat::kTokens};
inline constexpr DataFormat kPreferenceFormats[] = {DataFormat::kPreference, DataFormat::kLabelled};
inline constexpr DataFormat kRewardFormats[] = {DataFormat::kPreference};
inline constexpr DataFormat kClassFormats[] = {DataFormat::kClassification};
inline constexpr DataFormat kPolicyFormats[] = {DataFormat::kRollouts};
inline constexpr DataFormat kDistillFormats[] = {DataFormat::kDistillation};

// In the order of the enum.
inline constexpr std::array kTasks = {
    TaskSpec{Task::kPretrain, false, "", false, kDocumentFormats},
    TaskSpec{Task::kSft, true, "", false, kAnswerFormats},
    TaskSpec{Task::kPreference, true, "dpo", false, kPreferenceFormats},
    TaskSpec{Task::kReward, true, "reward", true, kRewardFormats},
    TaskSpec{Task::kClassify, true, "classify", true, kClassFormats},
    TaskSpec{Task::kPolicy, true, "policy", false, kPolicyFormats},
    TaskSpec{Task::kDistill, true, "distill", false, kDistillFormats},
};

constexpr const TaskSpec& spec_of(Task task) { return kTasks[static_cast<size_t>(task)]; }

// The values of data.packing and data.overflow for a task, unless they are set.
constexpr Packing default_packing(Task task) {
  return spec_of(task).has_answers ? Packing::kBestFit : Packing::kConcatSplit;
}
constexpr Overflow default_overflow(Task task) {
  return spec_of(task).has_answers ? Overflow::kDrop : Overflow::kError;
}

}  // namespace chassis
