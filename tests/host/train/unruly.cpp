// A library whose members do what no plugin may, by option, for plugin_faults_test.cpp and plugin_results_test.cpp.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "chassis/ops.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"
#include "chassis/tokenizer.hpp"

namespace {

using namespace chassis;

class FaultyKernel final : public Kernel {
 public:
  explicit FaultyKernel(std::string fault) : fault_(std::move(fault)) {}
  void forward(Call&) override {
    if (fault_ == "exit") std::exit(0);
    if (fault_ == "quick_exit") std::quick_exit(0);
    if (fault_ == "abort") std::abort();
    if (fault_ == "crash") *static_cast<volatile int*>(nullptr) = 1;
    if (fault_ != "hang") return;  // and leaves its output empty
    std::fprintf(stderr, "hanging\n");
    for (;;) pause();
  }

 private:
  std::string fault_;
};

class Unruly : public Ops {
 public:
  static constexpr std::string_view kDoc = "does what no plugin may, for tests";
  static constexpr std::string_view kPatterns[] = {"add"};
  static const Options& options() {
    static const Options schema = {
        option("fault", "refuse")
            .choices({"refuse", "print", "exit", "exit when made", "quick_exit", "abort", "crash", "hang", "no output"})};
    return schema;
  }
  explicit Unruly(const Host& host) : Ops(host), fault_(option_value<std::string>(host, "fault")) {
    if (fault_ == "exit when made") std::exit(0);
    if (fault_ != "print") return;
    std::printf("a plugin says hello\n");
    if (::write(STDOUT_FILENO, "and again\n", 10) != 10) std::abort();
  }

  double claim(const NodeView&) override {
    if (fault_ == "refuse" || fault_ == "print") refuse("it is not in the mood");
    return 1.0;
  }
  void infer(const NodeView&, Infer&) override {}
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { return std::make_unique<FaultyKernel>(fault_); }

 private:
  std::string fault_;
};

class Misspelt final : public Unruly {
 public:
  static constexpr std::string_view kId = "misspelt";
  static constexpr std::string_view kPatterns[] = {"add+rms_nrom"};
  using Unruly::Unruly;
};

class Misnumbering final : public Tokenizer {
 public:
  static constexpr std::string_view kId = "misnumbering";
  static constexpr std::string_view kDoc = "ids and counts that make no sense, for tests";
  static const Options& options() {
    static const Options schema = {option("fault", "none").choices(
        {"none", "no vocabulary", "huge vocabulary", "special id", "no fingerprint", "id", "negative id", "count", "bytes"})};
    return schema;
  }
  explicit Misnumbering(const Host& host) : Tokenizer(host), fault_(option_value<std::string>(host, "fault")) {}

  TokenizerInfo info() const override {
    TokenizerInfo info{.vocab_size = 10, .fingerprint = "ten"};
    if (fault_ == "no vocabulary") info.vocab_size = -3;
    if (fault_ == "huge vocabulary") info.vocab_size = int64_t{1} << 40;
    if (fault_ == "special id") info.eos_id = 10;
    if (fault_ == "no fingerprint") info.fingerprint = "";
    return info;
  }
  void encode(std::string_view text, IdSink& out) const override {
    for (size_t i = 0; i < text.size(); ++i) out.push(i != 1 ? 3 : fault_ == "id" ? 10 : fault_ == "negative id" ? -1 : 3, i);
    for (int i = 0; fault_ == "count" && i < 1000; ++i) out.push(3, 0);
  }
  void decode(std::span<const int32_t> ids, ByteSink& out) const override {
    for (size_t i = 0; i < ids.size(); ++i) out.push("x");
    for (int i = 0; fault_ == "bytes" && i < 10000; ++i) out.push("a line of 100 bytes that comes ten thousand times where nobody "
                                                                  "has asked for more than a single id");
  }

 private:
  std::string fault_;
};

class Misdeclaring final : public Optimizer {
 public:
  static constexpr std::string_view kId = "misdeclaring";
  static constexpr std::string_view kDoc = "states that make no sense, for tests";
  static const Options& options() {
    static const Options schema = {option("fault", "none").choices(
        {"none", "count", "role", "same role", "path", "dtype", "shape", "granularity", "block"})};
    return schema;
  }
  explicit Misdeclaring(const Host& host) : Optimizer(host) {
    const auto fault = option_value<std::string>(host, "fault");
    states_ = {element_state("exp_avg"), element_state("other")};
    if (fault == "count") states_.resize(1000, element_state("exp_avg"));
    chassis_state_desc_t& second = states_[1];
    if (fault == "role") second.role = str("");
    if (fault == "same role") second.role = str("exp_avg");
    if (fault == "path") second.role = str("../exp_avg");
    if (fault == "dtype") second.dtype = 77;
    if (fault == "shape") second.shape = 9;
    if (fault == "granularity") second.granularity = 4;
    if (fault == "block") second.granularity = CHASSIS_GRANULARITY_BLOCK, second.block = 0;
  }
  std::span<const chassis_state_desc_t> states() const override { return states_; }
  void step(const OptimizerStep&) override {}

 private:
  std::vector<chassis_state_desc_t> states_;
};

// Prints before the program knows that it is there.
__attribute__((constructor)) void print_when_loaded() {
  if (std::getenv("CHASSIS_TEST_PRINT")) std::printf("a constructor says hello\n");
}

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Unruly, Misspelt, Misnumbering, Misdeclaring)
