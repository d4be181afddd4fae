// summary.txt in the run directory: first, best and last value of chosen metrics, written when the run ends.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

class Summary final : public Sink {
 public:
  static constexpr std::string_view kDoc = "first, least and last value of some metrics, in summary.txt";

  static const Options& options() {
    static const Options schema = {
        option("names", std::vector<std::string>{"loss", "tokens_per_s"}).doc("the metrics"),
    };
    return schema;
  }

  explicit Summary(const Host& host) : Sink(host), names_(option_value<std::vector<std::string>>(host, "names")) {}

  void start(const chassis_sink_start_t& start) override {
    path_ = std::string(text_of(start.output_dir)) + "/summary.txt";
  }

  void scalars(int64_t, double, std::span<const chassis_scalar_t> scalars) override {
    for (const chassis_scalar_t& scalar : scalars) {
      const std::string name(text_of(scalar.name));
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) continue;
      const auto [known, is_first] = values_.try_emplace(name, Values{scalar.value, scalar.value, scalar.value});
      known->second.least = std::min(known->second.least, scalar.value);
      known->second.last = scalar.value;
    }
  }

  void finish(const chassis_sink_finish_t& finish) override {
    std::ofstream out(path_);
    for (const auto& [name, values] : values_)
      out << name << ": first " << values.first << ", least " << values.least << ", last " << values.last << "\n";
    if (finish.num_dropped > 0) out << finish.num_dropped << " records were dropped\n";
    if (!out.flush()) throw Failure(CHASSIS_UNAVAILABLE, "cannot write '", path_, "'");
  }

 private:
  struct Values {
    double first, least, last;
  };
  const std::vector<std::string> names_;
  std::string path_;
  std::map<std::string, Values> values_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "license=Apache-2.0\n",
    Summary)
