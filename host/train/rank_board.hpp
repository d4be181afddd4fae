// The current state of each rank, which rank 0 collects into ranks.json every two seconds during training.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "host/base/ticker.hpp"
#include "host/launch/world.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

class RankBoard {
 public:
  // [all-ranks] `world` has several ranks and outlives the board. Rank 0 writes `path`.
  RankBoard(World& world, std::string path);

  // [step] The last step of this rank.
  void set(const StepRecord& record);
  // [all-ranks] At the end of a run that did not fail: rank 0 writes the last steps of all ranks.
  void finish();

 private:
  bool tick();

  World& world_;
  const std::string path_;
  std::mutex ticking_, mutex_;
  std::string mine_ = "";  // JSON
  Ticker ticker_;          // last: it uses all of the above
};

}  // namespace chassis
