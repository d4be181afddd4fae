// The objects that the steps and the end of a run use.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/creation_limit.hpp"
#include "host/base/descriptor_reserve.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/plan/memory_fit.hpp"
#include "host/service/memory.hpp"
#include "host/service/trace.hpp"
#include "host/train/best_evaluation.hpp"
#include "host/train/generation_sets.hpp"
#include "host/train/rank_board.hpp"
#include "host/train/run_directory.hpp"
#include "host/train/run_saves.hpp"
#include "host/train/run_sinks.hpp"
#include "host/train/samples.hpp"
#include "host/train/step_trace.hpp"
#include "host/train/trainer.hpp"

namespace chassis {

// Empty before the preparation of a run, which sets the members as it makes them. If the preparation fails, the members
// that it has set stay until the failure is reported. They refer to each other, so the struct is not moved.
struct PreparedRun {
  PreparedRun() = default;
  PreparedRun(const PreparedRun&) = delete;
  PreparedRun& operator=(const PreparedRun&) = delete;

  // NULL if the run has no trace.
  Trace* recorder() { return trace ? trace->recorder() : nullptr; }

  MemoryFit fit;
  std::optional<CreationLimit> limit;        // limits access to the files of this run
  std::optional<DescriptorReserve> reserve;  // for saves, however many the sinks use
  std::unique_ptr<RunDirectory> directory;
  std::unique_ptr<TrainData> data;
  std::vector<std::unique_ptr<EvalData>> eval_data;
  std::optional<Samples> samples;
  std::optional<GenerationSets> generation_sets;
  std::unique_ptr<RunSaves> saves;
  std::optional<MemoryCharge> step_data;    // the rows in `data`, which are plain arrays
  std::optional<ReferenceModel> reference;  // only if the objective compares with one in each step
  std::string reference_hash;               // of the model that the objective compares with; "": it has none
  std::optional<ObjectiveStep> objective;   // only if the run has an objective of its own
  std::unique_ptr<Trainer> trainer;
  RunSinks sinks;
  std::function<bool()> swap_requested;  // of LiveSwap; empty before the first step
  std::unique_ptr<RankBoard> board;    // NULL in a run of one rank
  std::optional<BestEvaluation> best;  // set if eval.keep_best is
  std::optional<StepTrace> trace;
};

}  // namespace chassis
