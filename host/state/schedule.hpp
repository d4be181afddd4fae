// A pipeline schedule as data: what each rank computes, in order, and where the stages lie. No processes, no
// communication.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// One entry of a rank's list.
struct Work {
  // A backward computes the gradients of inputs and of parameters. Zero-bubble schedules split it into the two others,
  // because another stage waits only for the gradients of inputs.
  enum class Kind : uint8_t { kForward, kBackward, kBackwardInputs, kBackwardParams };

  Kind kind = Kind::kForward;
  int chunk = 0;  // index among the stages that lie on the rank
  int microbatch = 0;

  bool operator==(const Work&) const = default;
};

// "forward", "backward", "backward_inputs", "backward_params".
std::string_view kind_name(Work::Kind kind);
// 'F', 'B', 'I', 'W', as in torch.distributed.pipelining.
inline constexpr std::string_view kKindLetters = "FBIW";  // by Work::Kind
// "forward of chunk 1, micro-batch 3"
std::string text(const Work& work);

// Runs forward and backward of each micro-batch in turn: the schedule of a run without a pipeline.
std::vector<Work> sequential_schedule(int64_t num_microbatches);

// By entry of a rank's list: 1 if it computes gradients of parameters, and no later entry does so for its chunk.
std::vector<uint8_t> last_of_chunk(const std::vector<Work>& schedule);

// The ranks on which the stages of a pipeline lie. A stage is a range of the model's units; stage 0 has the first. A
// rank has one stage or several, its chunks.
class StageMap {
 public:
  // One stage on one rank.
  StageMap() : StageMap({0}) {}
  // `ranks` is indexed by stage. Chunk k of a rank is its k-th stage. Throws if a rank below the largest has no stage.
  explicit StageMap(std::vector<int> ranks);
  // Stage s lies on rank s mod num_ranks, so that stage = chunk·num_ranks + rank (Narayanan et al. 2021).
  static StageMap interleaved(int num_ranks, int num_chunks);
  // Stages go to the last rank and come back: rank r has stages r and 2·num_ranks - 1 - r. The first and the last stage
  // lie on rank 0 (Qi et al. 2024).
  static StageMap v_shaped(int num_ranks);

  int num_ranks() const { return static_cast<int>(stages_.size()); }
  int num_stages() const { return static_cast<int>(ranks_.size()); }
  int num_chunks(int rank) const { return static_cast<int>(stages_[static_cast<size_t>(rank)].size()); }
  int stage(int rank, int chunk) const { return stages_[static_cast<size_t>(rank)][static_cast<size_t>(chunk)]; }
  int rank(int stage) const { return ranks_[static_cast<size_t>(stage)]; }
  int chunk(int stage) const { return chunks_[static_cast<size_t>(stage)]; }

  bool operator==(const StageMap&) const = default;

 private:
  std::vector<int> ranks_, chunks_;       // by stage
  std::vector<std::vector<int>> stages_;  // by rank and chunk
};

struct Schedule {
  StageMap stages;
  int num_microbatches = 1;
  // By rank. A rank runs its entries strictly in order: it waits until the inputs of an entry are ready, and sends the
  // results without blocking.
  std::vector<std::vector<Work>> ranks;

  bool operator==(const Schedule&) const = default;
};

}  // namespace chassis
