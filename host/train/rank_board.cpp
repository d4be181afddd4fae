// Each rank sets a key of the store. A rank that has not set its own is left out.
#include "host/train/rank_board.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/launch/gpus.hpp"

namespace chassis {
namespace {

constexpr std::chrono::milliseconds kPeriod{2000};

std::string key_of(int rank) { return fmt::format("ranks/{}", rank); }

double exposed_ms(const StepRecord& record) {
  for (const auto& [name, value] : record.extra)
    if (name == "comm_exposed_ms") return value;
  return 0.0;
}

}  // namespace

RankBoard::RankBoard(World& world, std::string path)
    : world_(world), path_(std::move(path)), ticker_("rank board", kPeriod, [this] { return tick(); }) {}

void RankBoard::set(const StepRecord& record) {
  Json json = {{"rank", world_.rank()},
               {"step", record.step},
               {"step_ms", record.step_ms},
               {"wait_ms", exposed_ms(record)},
               {"active_memory_bytes", record.peak_memory_bytes}};
  std::string text = json.dump();
  const std::lock_guard lock(mutex_);
  mine_ = std::move(text);
}

void RankBoard::finish() {
  if (world_.rank() != 0) tick();
  world_.exchange("last step of every rank", "");
  if (world_.rank() == 0) tick();
}

bool RankBoard::tick() {
  const std::lock_guard one_at_a_time(ticking_);
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    mine = mine_;
  }
  if (mine.empty()) return true;
  try {
    if (const auto temperature = gpu_temperature(world_.launch().local_rank)) {
      Json json = Json::parse(mine);
      json["temperature"] = *temperature;
      mine = json.dump();
    }
    world_.store()->set(key_of(world_.rank()), mine);
    if (world_.rank() != 0) return true;
    Json ranks = Json::array();
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto text = world_.store()->find(key_of(rank));
      Json json = text ? parse_json_or_null(*text) : Json();
      if (json.is_object()) ranks.push_back(std::move(json));
    }
    write_file_atomic(path_, json_line({{"ranks", ranks}}) + "\n");
  } catch (const Error& error) {  // the store is lost, which training reports; or the disk is full
    if (error.code() == ExitCode::kStorage) counted_warning("ranks.json not written", error.message());
    return error.code() == ExitCode::kStorage;
  }
  return true;
}

}  // namespace chassis
