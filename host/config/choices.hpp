// The choices of keys as enums, each with its names in the configuration.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace chassis {

// The names of the choices of an enum, in the order of its enumerators. The documentation shows them in this order.
template <class T>
inline constexpr std::array<std::string_view, 0> kChoiceNames = {};

template <class T>
concept ChoiceType = std::is_enum_v<T> && !kChoiceNames<T>.empty();

// The words of run.resume, which may also be a path.
enum class Resume { kAuto, kNever };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<Resume> = {"auto", "never"};

// run.memory_check
enum class MemoryCheck { kRefuse, kWarn };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<MemoryCheck> = {"refuse", "warn"};

// model.init
enum class ModelInit { kPretrained, kRandom };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<ModelInit> = {"pretrained", "random"};

// format of a data set
enum class DataFormat {
  kText,
  kAlpaca,
  kShareGpt,
  kMessages,
  kPromptCompletion,
  kSegments,
  kTokens,
  kPreference,
  kLabelled,
  kClassification,
  kRollouts,
  kDistillation,
};
template <>
inline constexpr std::array<std::string_view, 12> kChoiceNames<DataFormat> = {
    "text",   "alpaca",     "sharegpt", "messages",       "prompt_completion", "segments",
    "tokens", "preference", "labelled", "classification", "rollouts",          "distillation"};

// documents of a data set: how a .txt file is divided into documents.
enum class DocumentSplit { kLine, kParagraph, kFile };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<DocumentSplit> = {"line", "paragraph", "file"};

// data.packing
// best_fit: whole documents, several per row, each where it leaves the least room; the rest of a row is padded.
// concat_split: documents are joined and split into rows without padding; a document may continue in the next row.
// none: one document per row, padded.
enum class Packing { kBestFit, kConcatSplit, kNone };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<Packing> = {"best_fit", "concat_split", "none"};

// data.overflow: the treatment of documents longer than seq_len, unless documents are split. truncate_left_prompt keeps
// their end: tokens are cut from the front, before the first trained one.
enum class Overflow { kError, kTruncate, kTruncateLeftPrompt, kDrop };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<Overflow> = {"error", "truncate", "truncate_left_prompt",
                                                                           "drop"};

// data.on_refused
enum class OnRefused { kError, kSkip };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<OnRefused> = {"error", "skip"};

// data.reasoning: the treatment of the reasoning of assistant messages.
enum class Reasoning { kTemplate, kKeep, kStrip };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<Reasoning> = {"template", "keep", "strip"};

// train.task; task_table.hpp has what follows from each.
enum class Task { kPretrain, kSft, kPreference, kReward, kClassify, kPolicy, kDistill };
template <>
inline constexpr std::array<std::string_view, 7> kChoiceNames<Task> = {"pretrain", "sft",    "preference", "reward",
                                                                       "classify", "policy", "distill"};

// reference.mode
enum class ReferenceMode { kOnline, kPrecompute };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<ReferenceMode> = {"online", "precompute"};

// train.nonfinite
enum class NonFinite { kStop, kSkip };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<NonFinite> = {"stop", "skip"};

// score of a set of [[eval.generate]]: when an answer passes.
enum class AnswerScore { kExact, kContains, kRegex, kCommand };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<AnswerScore> = {"exact", "contains", "regex", "command"};

// precision.compute and export.dtype
enum class DtypeChoice { kAuto, kFp32, kBf16, kFp16 };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<DtypeChoice> = {"auto", "fp32", "bf16", "fp16"};

// precision.reduce
enum class ReduceDtype { kFp32, kBf16 };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<ReduceDtype> = {"fp32", "bf16"};

// recompute.mode
enum class RecomputeMode { kAuto, kNone, kSelective, kFull };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<RecomputeMode> = {"auto", "none", "selective", "full"};

// schedule.name: the curve of the learning rate after the warm-up.
enum class Curve { kConstant, kLinear, kCosine, kWsd };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<Curve> = {"constant", "linear", "cosine", "wsd"};

// checkpoint.contents
enum class CheckpointContents { kFull, kTrained, kModelOnly };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<CheckpointContents> = {"full", "trained", "model_only"};

// checkpoint.async
enum class AsyncSave { kOff, kOn, kStaged };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<AsyncSave> = {"false", "true", "staged"};

// checkpoint.on_error
enum class OnSaveError { kStop, kWarn };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<OnSaveError> = {"stop", "warn"};

// export.when
enum class ExportWhen { kLast, kEvery, kNever };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<ExportWhen> = {"last", "every", "never"};

// "best_fit" for Packing::kBestFit.
template <ChoiceType T>
constexpr std::string_view to_text(T choice) {
  return kChoiceNames<T>[static_cast<size_t>(choice)];
}

// Empty for a text that is none of the names.
template <ChoiceType T>
constexpr std::optional<T> choice_from(std::string_view text) {
  for (size_t i = 0; i < kChoiceNames<T>.size(); ++i)
    if (kChoiceNames<T>[i] == text) return static_cast<T>(i);
  return std::nullopt;
}

// run.resume: one of its words, or the path of a checkpoint.
struct ResumeFrom {
  std::optional<Resume> word;  // empty: a path
  std::string text;            // as written

  bool operator==(Resume other) const { return word == other; }
};

}  // namespace chassis
