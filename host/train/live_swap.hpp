// Changes what computes the steps of a run while it trains: providers, strategies, and the settings that follow from
// them. The next state is made beside the present one; between two steps all tensors move to it; a witness batch shows
// that it computes the same; some steps later the change becomes permanent. Until then every action can be undone.
//
// A run prepares on the thread of its steps. swap_protocol.hpp has the order of the actions.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/json.hpp"
#include "host/config/option.hpp"
#include "host/control/control_server.hpp"
#include "host/plan/memory_fit.hpp"
#include "host/save/state_transfer.hpp"
#include "host/session/session.hpp"
#include "host/train/run_inputs.hpp"
#include "host/train/step_record.hpp"
#include "host/train/swap_protocol.hpp"
#include "host/train/swap_witness.hpp"

namespace chassis {

struct PreparedRun;

// A change that a user asks for.
struct SwapRequest {
  std::string id;
  std::vector<std::string> changes;  // "attention.plugin=sdpa"
  std::string file = {};             // the text of a configuration that the changes are made to; empty: the present one
  std::string file_name = {};
  bool only_check = false;      // everything up to the vote
  bool is_of_operator = false;  // who gets replies
};

// A key that differs between two configurations.
struct ChangedKey {
  std::string key;
  std::string before, after;  // JSON; empty: not set
  Change change = Change::kRestart;
};
std::vector<ChangedKey> changed_keys(const Config& before, const Config& after);

class LiveSwap {
 public:
  // [control][all-ranks] Checks the swaps that the configuration plans, and throws for one that cannot be made. Both
  // outlive it.
  LiveSwap(const RunInputs& inputs, PreparedRun& run);
  ~LiveSwap();

  // True on rank 0 if an operator asks for something that all ranks must do together. Not [all-ranks].
  bool is_requested();
  // [step][all-ranks] Makes the planned swaps that a resumed run has passed already.
  void before_steps();
  // [step][all-ranks] After each step: looks at its record if a swap is on probation, and begins what is due.
  // `requested`: is_requested() of any rank.
  void after_step(const StepRecord& record, bool requested);

 private:
  struct Planned {
    int64_t at_step = 0;
    SwapRequest request;  // with the id "swap.0"
    SourcePosition where;
  };
  struct Attempt;

  Session& session() { return inputs_.session; }
  World& world() { return inputs_.session.world(); }
  int64_t step() const;

  void check_planned();
  // The configuration that a request makes of `present`.
  Config config_of(const SwapRequest& request, const Config& present, std::vector<std::string>& left_out) const;
  // The keys that differ. Throws a config error that lists those that need a restart, or for what no swap can do.
  std::vector<ChangedKey> check_change(const Config& before, const Config& after) const;
  // [all-ranks] Does what the operator asks for.
  void take_request();
  void set_status();
  // Undoes a swap on probation, or makes it permanent.
  void decide(bool commits, const std::string& cause);
  void begin(const SwapRequest& request);
  // Carries out actions until the swap is over, or on probation.
  void advance();
  SwapEvent carry_out(SwapAction action);
  void act(SwapAction action);
  void prepare();
  void require_agreement();
  void quiesce();
  void migrate();
  void activate();
  void prove();
  void commit();
  void move_back();
  void resume();
  // Makes the objects of the run that depend on the session's state follow it.
  void follow();
  void watch(const StepRecord& record);
  std::string defect(const StepRecord& record) const;
  void end(SwapAction outcome);
  void report(const std::string& outcome);
  void say(const std::string& phase);

  const RunInputs inputs_;
  PreparedRun& run_;
  std::deque<Planned> planned_;                    // by step
  int64_t generation_ = 0;                         // counts the commits
  int64_t number_ = 0;                             // counts the attempts that came to connect
  std::deque<std::pair<double, double>> history_;  // loss and gradient norm of the last steps
  std::unique_ptr<Attempt> attempt_;               // NULL: no swap is in progress
  std::unique_ptr<ControlServer> control_;         // on rank 0
  std::optional<ControlRequest> asked_;            // taken from it, and not yet known to the other ranks
  Json computes_;                                  // for its status: key of the configuration → plugin
};

}  // namespace chassis
