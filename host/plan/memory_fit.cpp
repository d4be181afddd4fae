// Ranks exchange what they need and have; all then reach the same decision.
#include "host/plan/memory_fit.hpp"

#include <algorithm>
#include <map>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/units.hpp"
#include "host/compile/recompute.hpp"
#include "host/service/device.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

std::string to_text(const RankMemory& m) {
  return Json::array({m.machine, m.on_device, m.planned, m.device_bytes, m.host_bytes, m.device_free, m.device_total,
                      m.host_free, m.host_total, m.swap_free, m.limited_by})
      .dump();
}

RankMemory from_text(const std::string& text) {
  const Json all = parse_json(text, "another rank's memory");
  return {all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7], all[8], all[9], all[10]};
}

class MemoryFitter {
 public:
  MemoryFitter(const CompiledProgram& compiled, const Config& config, const std::vector<std::string>& plugin_path,
               World& world, const MemoryHeld& held = {})
      : compiled_(compiled), config_(config), plugin_path_(plugin_path), world_(world), held_(held) {}

  MemoryFit run() {
    const bool is_auto = config_.settings().recompute.mode == RecomputeMode::kAuto;
    Recompute chosen = recompute_setting(config_.settings(), compiled_.program());
    if (is_auto)
      chosen = cheapest_that_fits(max_recomputed_blocks(compiled_.program()), [&](const Recompute& recompute) {
        plan(recompute);
        return find_shortage(ranks_, true).rank < 0;
      });
    if (ranks_.empty() || fit_.recompute != chosen) plan(chosen);
    report(is_auto);
    return std::move(fit_);
  }

 private:
  void plan(const Recompute& recompute) {
    fit_.recompute = recompute;
    fit_.plan.reset();
    const Device device = compiled_.options().device;
    const DeviceMemory of_device = device_memory(device), of_host = device_memory({});
    RankMemory mine;
    mine.machine = world_.size() == 1 ? "this machine" : world_.host_address();
    mine.on_device = device.spec().has_own_memory;
    mine.device_free = of_device.free_bytes, mine.device_total = of_device.total_bytes;
    mine.host_free = of_host.free_bytes, mine.host_total = of_host.total_bytes;
    mine.swap_free = of_host.free_swap_bytes, mine.limited_by = of_host.limited_by;
    try {
      const log::CapturedWarnings known;  // the run itself has already logged them
      fit_.plan = plan_rank(config_, plugin_path_, world_.size(), world_.rank(), device, recompute);
      mine.device_bytes = fit_.plan->peak_bytes();
      mine.host_bytes = fit_.plan->host_peak_bytes;
    } catch (const std::exception& error) {
      reason_ = error.what();
      mine.planned = false;
      mine.device_bytes = compiled_.planned_activation_bytes(recompute);
    }
    mine.device_bytes = std::max(mine.device_bytes, held_.peak_bytes);
    mine.device_free += held_.held_bytes;
    if (!mine.on_device) mine.host_free += held_.held_bytes;
    ranks_.clear();
    for (const std::string& text : world_.exchange("memory", to_text(mine))) ranks_.push_back(from_text(text));
  }

  void report(bool is_auto) {
    const RankMemory& mine = ranks_[static_cast<size_t>(world_.rank())];
    log::info("recompute {}{}: {} of {} planned at the peak, {} free", is_auto ? "auto -> " : "", text(fit_.recompute),
              mine.planned ? "memory" : "activations", bytes_text(mine.device_bytes), bytes_text(mine.device_free));
    if (!mine.planned && world_.rank() == 0)
      counted_warning("no memory plan", "the memory of this run could not be planned: " + reason_);
    if (const MemoryShortage total = find_shortage(ranks_, false); total.rank >= 0) refuse(total);
    if (mine.planned)
      if (const std::string text =
              limit_warning(process_limits(), mine.on_device ? mine.host_bytes : mine.device_bytes);
          !text.empty())
        counted_warning("limit of the process", text);
    const MemoryShortage now = find_shortage(ranks_, true);
    if (now.rank == world_.rank())
      counted_warning("may not fit", now.what + ": " + bytes_text(now.needed_bytes) + " are planned at the peak, " +
                                         bytes_text(now.available_bytes) + " are free" + text_of_limits(now) +
                                         "; lower train.micro_batch_size");
  }

  // Only the rank that lacks memory reports it.
  void refuse(const MemoryShortage& shortage) {
    const std::string text = "the run does not fit: " + shortage.what + ": " + bytes_text(shortage.needed_bytes) +
                             " are planned at the peak, there are " + bytes_text(shortage.available_bytes) +
                             text_of_limits(shortage);
    if (config_.settings().run.memory_check == MemoryCheck::kWarn) {
      if (shortage.rank == world_.rank()) counted_warning("does not fit", text);
      return;
    }
    world_.run_and_agree("planning memory", [&] {
      if (shortage.rank != world_.rank()) return;
      throw Error(ExitCode::kOutOfMemory, text)
          .hint(
              "`chassis plan` with --memory says what to change: fewer rows (train.micro_batch_size), "
              "recompute.mode = \"selective\" or \"full\", more ranks with a strategy that divides; "
              "run.memory_check = \"warn\" tries it anyway");
    });
  }

  const CompiledProgram& compiled_;
  const Config& config_;
  const std::vector<std::string>& plugin_path_;
  World& world_;
  const MemoryHeld held_;
  MemoryFit fit_;
  std::string reason_;
  std::vector<RankMemory> ranks_;
};

}  // namespace

MemoryShortage find_shortage(const std::vector<RankMemory>& ranks, bool of_free) {
  struct Machine {
    int first = -1, num_ranks = 0;
    uint64_t needed = 0, there = UINT64_MAX, swap = UINT64_MAX;
    std::string limited_by;
  };
  std::map<std::string, Machine> machines;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankMemory& m = ranks[r];
    if (m.on_device) {
      const uint64_t there = of_free ? m.device_free : m.device_total;
      if (m.device_bytes > there && (m.planned || of_free))
        return {static_cast<int>(r), m.device_bytes, there, "rank " + std::to_string(r) + " on its device"};
    }
    if (!m.planned && !of_free) continue;  // an estimate is no reason to refuse
    Machine& machine = machines[m.machine];
    if (machine.first < 0) machine.first = static_cast<int>(r);
    ++machine.num_ranks;
    machine.needed += m.on_device ? m.host_bytes : m.device_bytes;
    const uint64_t there = of_free ? m.host_free : m.host_total;
    if (there < machine.there) machine.limited_by = m.limited_by;
    machine.there = std::min(machine.there, there);
    machine.swap = std::min(machine.swap, m.swap_free);
  }
  MemoryShortage worst;
  for (const auto& [name, machine] : machines) {
    if (machine.needed <= machine.there || (worst.rank >= 0 && machine.first > worst.rank)) continue;
    worst = {machine.first,
             machine.needed,
             machine.there,
             machine.num_ranks == 1 ? "rank " + std::to_string(machine.first) + " on " + name
                                    : std::to_string(machine.num_ranks) + " ranks on " + name,
             machine.swap,
             machine.limited_by};
  }
  return worst;
}

std::string text_of_limits(const MemoryShortage& shortage) {
  std::string text = shortage.limited_by.empty() ? "" : " (" + shortage.limited_by + ")";
  if (shortage.swap_bytes > 0)
    text += ", and " + bytes_text(shortage.swap_bytes) + " of swap space, with which steps take many times as long";
  return text;
}

std::string limit_warning(const std::vector<ProcessLimit>& limits, uint64_t planned_bytes) {
  for (const ProcessLimit& limit : limits) {
    const uint64_t left = limit.limit_bytes - std::min(limit.limit_bytes, limit.used_bytes);
    if (planned_bytes <= left) continue;
    return limit.name + " is " + bytes_text(limit.limit_bytes) + ", of which " + bytes_text(limit.used_bytes) +
           " are in use: " + bytes_text(planned_bytes) + " more are planned at the peak; raise it (" + limit.command +
           "), or lower train.micro_batch_size";
  }
  return "";
}

MemoryFit fit_memory(Session& session, const Config& config, const std::vector<std::string>& plugin_path,
                     World& world) {
  return MemoryFitter(session.compiled(), config, plugin_path, world).run();
}

MemoryFit fit_memory(const CompiledProgram& compiled, const Config& config, const std::vector<std::string>& plugin_path,
                     World& world, const MemoryHeld& held) {
  return MemoryFitter(compiled, config, plugin_path, world, held).run();
}

}  // namespace chassis
