// Pipeline parallelism: each rank has some of the layers, and micro-batches pass through the ranks one after another.
// The host makes the named schedules, proves them, and runs them; this strategy only chooses.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class PipelineParallel final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "layers divided over the ranks, micro-batches one after another";
  static constexpr std::string_view kHomeAxis = "pp";
  static constexpr Saving kSavings[] = {{"schedule", "\"1f1b\""}};

  static const Options& options() {
    static const Options schema = {
        option("schedule", "1f1b")
            .choices({"gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "csv"})
            .doc(
                "the order of forwards and backwards; zb_h1 and zbv split backward and wait least, interleaved and zbv "
                "have several stages on each rank, gpipe keeps all micro-batches"),
        option("chunks", 0).range(0, 64).doc("stages on each rank; 0: 2 for interleaved and zbv, 1 for the others"),
        option("group_size", 0)
            .range(0, 1 << 16)
            .doc("interleaved: micro-batches that a chunk runs before the next one does; 0: the number of ranks"),
        option("layers_per_stage", std::vector<int64_t>{})
            .range(0, 1 << 20)
            .doc("layers of each stage; embedding and head are in the first and the last one. Empty: divided so that "
                 "the slowest stage is as fast as possible, embedding and head included"),
        option("csv", "").doc(
            "schedule = \"csv\": a file in the format of torch.distributed.pipelining, a line for each rank"),
    };
    return schema;
  }

  explicit PipelineParallel(const Host& host)
      : Parallel(host),
        schedule_(option_value<std::string>(host, "schedule")),
        csv_(option_value<std::string>(host, "csv")),
        chunks_(option_value<uint32_t>(host, "chunks")),
        group_size_(option_value<uint32_t>(host, "group_size")),
        layers_(option_value<std::vector<int64_t>>(host, "layers_per_stage")) {
    if (group_size_ > 0 && schedule_ != "interleaved") refuse("group_size", "interleaved");
    if (!csv_.empty() && schedule_ != "csv") refuse("csv", "csv");
    if (schedule_ != "csv") return;
    if (csv_.empty())
      fail_invalid(option_origin(host, "schedule"), ": schedule = \"csv\" needs a file; set csv = \"PATH\"");
    if (chunks_ > 0)
      fail_invalid(option_origin(host, "chunks"), ": the file says how many stages a rank has; remove chunks");
    read_file();
  }

  void stages(const StageProblem& problem, StageSink& sink) override {
    if (problem.axis_size(kHomeAxis) == 1) {
      host().count("pipeline on one rank", "a schedule has no effect: mesh.pp is 1");
      return sink.named(kHomeAxis, "1f1b", 1);
    }
    if (schedule_ == "csv") {
      sink.csv(kHomeAxis, text_, csv_);
    } else {
      const bool has_several = schedule_ == "interleaved" || schedule_ == "zbv";
      sink.named(kHomeAxis, schedule_, chunks_ > 0 ? chunks_ : has_several ? 2 : 1, group_size_);
    }
    if (!layers_.empty()) sink.layers(layers_);
  }

  void resolve(const ParallelProblem&, ParallelSink&) override {}  // a rank stores what its stages read

 private:
  void read_file() {
    constexpr size_t kMostBytes = size_t{64} << 20;
    const auto refuse_file = [&](const auto&... why) { fail_invalid(option_origin(host(), "csv"), ": ", why...); };
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    const int file = open(csv_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) refuse_file("cannot read '", csv_, "': ", std::strerror(errno));
    const struct Closer {
      int file;
      ~Closer() { close(file); }
    } closer{file};
    struct stat status {};
    if (fstat(file, &status) != 0) refuse_file("cannot read '", csv_, "': ", std::strerror(errno));
    if (!S_ISREG(status.st_mode))
      refuse_file("'", csv_, "' is ", S_ISDIR(status.st_mode) ? "a folder" : "a pipe or a device", ", not a file");
    char part[4096];
    ssize_t count = 0;
    while (text_.size() <= kMostBytes && (count = read(file, part, sizeof part)) > 0)
      text_.append(part, static_cast<size_t>(count));
    if (count < 0) refuse_file("cannot read '", csv_, "': ", std::strerror(errno));
    if (text_.empty()) refuse_file("'", csv_, "' is empty");
    if (text_.size() > kMostBytes) refuse_file("'", csv_, "' has more than ", kMostBytes, " bytes");
  }
  void refuse(std::string_view name, std::string_view schedule) const {
    fail_invalid(option_origin(host(), name), ": ", name, " has no effect with schedule = \"", schedule_,
                 "\"; remove it or set schedule = \"", schedule, "\"");
  }

  const std::string schedule_, csv_;
  const uint32_t chunks_, group_size_;
  const std::vector<int64_t> layers_;
  std::string text_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nrequires=chassis.log/1\nswappable=1\nlicense=Apache-2.0\n",
               PipelineParallel)
