// Members that break the rules for plugins, by an option, for plugin_faults_test.cpp and plugin_results_test.cpp.
#include <signal.h>
#include <unistd.h>

#include <cmath>
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

[[noreturn]] void hang() {
  std::fprintf(stderr, "hanging\n");
  for (;;) pause();
}

// Volatile, so that the compiler does not optimize the calls away.
void (*volatile bad_function)() = reinterpret_cast<void (*)()>(0x10);
volatile int never = 1 << 30;
__attribute__((noinline)) int recurse_without_end(int depth) {
  volatile char frame[1024];
  frame[depth & 1023] = static_cast<char>(depth);
  return depth == never ? 0 : recurse_without_end(depth + 1) + frame[0];
}

class FaultyKernel final : public Kernel {
 public:
  explicit FaultyKernel(std::string fault) : fault_(std::move(fault)) {}
  void forward(Call& call) override {
    if (fault_ == "bad call") bad_function();
    if (fault_ == "overflow" && recurse_without_end(0) == 1) return;
    if (fault_ == "_exit") _exit(0);
    if (fault_ == "no message") throw Failure(CHASSIS_UNAVAILABLE, "");
    if (fault_ == "fails with OK") throw Failure(CHASSIS_OK, "it went wrong");
    if (fault_ == "unknown status") throw Failure(777, "it went wrong");
    const Tensor own = Tensor::create_like(call.host(), call.input(0));
    if (fault_ == "lent handle") call.raw().outputs[0] = call.input(1).handle();
    if (fault_ == "released handle") call.raw().outputs[0] = own.handle();  // `own` is released when forward returns
    if (fault_ == "one handle twice") call.raw().outputs[0] = call.raw().saved[0] = own.retain().release();
    if (fault_ == "garbage handle") call.raw().outputs[0] = reinterpret_cast<chassis_tensor_t>(0x1234);
    if (fault_ == "another handle") call.raw().outputs[0] = own.retain().release();
    if (fault_ == "exit") std::exit(0);
    if (fault_ == "quick_exit") std::quick_exit(0);
    if (fault_ == "abort") std::abort();
    if (fault_ == "crash") *static_cast<volatile int*>(nullptr) = 1;
    if (fault_ == "hang") hang();
    // With "no output" the output stays empty.
  }

 private:
  std::string fault_;
};

class Unruly : public Ops {
 public:
  static constexpr std::string_view kDoc = "breaks the rules for plugins, for tests";
  static constexpr std::string_view kPatterns[] = {"add"};
  static const Options& options() {
    static const Options schema = {option("fault", "refuse")
                                       .choices({"refuse",
                                                 "refuse on rank 1",
                                                 "print",
                                                 "exit",
                                                 "exit when made",
                                                 "quick_exit",
                                                 "_exit",
                                                 "abort",
                                                 "crash",
                                                 "bad call",
                                                 "overflow",
                                                 "hang",
                                                 "hang when made",
                                                 "no output",
                                                 "lent handle",
                                                 "released handle",
                                                 "one handle twice",
                                                 "garbage handle",
                                                 "another handle",
                                                 "no message",
                                                 "fails with OK",
                                                 "unknown status"})};
    return schema;
  }
  explicit Unruly(const Host& host) : Ops(host), fault_(option_value<std::string>(host, "fault")) {
    if (fault_ == "exit when made") std::exit(0);
    if (fault_ == "hang when made") hang();
    if (fault_ != "print") return;
    std::printf("a plugin says hello\n");
    if (::write(STDOUT_FILENO, "and again\n", 10) != 10) std::abort();
  }

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"eps"});
    const char* const rank = std::getenv("CHASSIS_RANK");
    if (fault_ == "refuse on rank 1" && rank && std::string(rank) == "1") refuse("it is on rank 1");
    if (fault_ == "refuse" || fault_ == "print") refuse("its option fault says so");
    return 1.0;
  }
  void infer(const NodeView& node, Infer& out) override {
    if (fault_ == "one handle twice") out.saves(node.input(0).dtype(), node.input(0).local_shape());
    if (fault_ == "another handle") out.flags(CHASSIS_KERNEL_HOST_OUTPUTS);
  }
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

// A tokenizer of ten ids that renders no chats and trains no vocabulary.
class Misnumbering final : public Tokenizer {
 public:
  static constexpr std::string_view kId = "misnumbering";
  static constexpr std::string_view kDoc = "invalid ids and counts, for tests";
  static const Options& options() {
    static const Options schema = {option("fault", "none")
                                       .choices({"none", "no vocabulary", "huge vocabulary", "special id",
                                                 "no fingerprint", "id", "negative id", "count", "bytes"})};
    return schema;
  }
  explicit Misnumbering(const Host& host) : Tokenizer(host), fault_(option_value<std::string>(host, "fault")) {}

  TokenizerInfo info() const override {
    return {.eos_id = fault_ == "special id" ? 10 : -1,
            .vocab_size = fault_ == "no vocabulary"     ? -3
                          : fault_ == "huge vocabulary" ? int64_t{1} << 40
                                                        : 10,
            .fingerprint = fault_ == "no fingerprint" ? "" : "ten"};
  }
  void encode(std::string_view text, bool /*special*/, Tokens& out) const override {
    for (size_t i = 0; i < text.size(); ++i)
      out.push(i != 1 ? 3 : fault_ == "id" ? 10 : fault_ == "negative id" ? -1 : 3, i, i + 1);
    for (size_t i = 0; fault_ == "count" && i < 1000; ++i) out.push(3, text.size(), text.size());
  }
  void decode(std::span<const int32_t> ids, bool /*keep_special*/, std::string& out) const override {
    out.append(fault_ == "bytes" ? size_t{1} << 20 : ids.size(), 'x');
  }
  TokenInfo token(int32_t) const override { return {.text = "x"}; }
  int32_t id_of(std::string_view) const override { return -1; }

 private:
  std::string fault_;
};

// A tokenizer of bytes that breaks one promise.
class Misencoding final : public Tokenizer {
 public:
  static constexpr std::string_view kId = "misencoding";
  static constexpr std::string_view kDoc = "invalid offsets, spans and files, for tests";
  static const Options& options() {
    static const Options schema = {option("fault", "none")};
    return schema;
  }
  explicit Misencoding(const Host& host) : Tokenizer(host), fault_(option_value<std::string>(host, "fault")) {}

  void open(std::string_view directory) override {
    if (fault_ == "open") fail_invalid("no tokenizer in '", directory, "'");
  }
  TokenizerInfo info() const override {
    return {.bos_id = fault_ == "bos flag" ? -1 : 1,
            .unk_id = fault_ == "unk" ? 256 : -1,
            .vocab_size = 256,
            .fingerprint = "misencoding",
            .chat_template = "{{ messages }}",
            .adds_bos = fault_ == "bos flag"};
  }
  void encode(std::string_view text, bool special, Tokens& out) const override {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool at = i == 2;
      out.push(at && fault_ == "id"        ? 256
               : special && text[i] == '!' ? 0
                                           : static_cast<unsigned char>(text[i]),
               at && fault_ == "begin" ? 0 : i,
               at && fault_ == "end"            ? text.size() + 1
               : at && fault_ == "before begin" ? 1
                                                : i + 1);
    }
  }
  void decode(std::span<const int32_t> ids, bool keep_special, std::string& out) const override {
    for (int32_t id : ids) {
      check_id(id, 256);
      if (id != 0) out += static_cast<char>(id);
      if (id == 0 && keep_special) out += '!';
    }
    if (fault_ == "bytes") out.append(1 << 20, 'x');
  }
  TokenInfo token(int32_t id) const override {
    check_id(id, 256);
    return {.text = "some", .special = id == 0, .added = id == 1, .unused = id == 2};
  }
  int32_t id_of(std::string_view text) const override {
    return fault_ == "id_of" ? 256 : text.size() == 1 ? static_cast<unsigned char>(text[0]) : -1;
  }
  void render(const Chat& chat, ChatSink& out) const override {
    if (fault_ == "refuses") fail_invalid("roles must alternate");
    if (fault_ == "unproven") throw Failure(CHASSIS_FAILED_PRECONDITION, "the template trims");
    if (fault_ == "span before text") out.span(CHASSIS_LEAF_CONTENT, 0, 0, 1);
    if (fault_ != "no text") out.text("0123456789");
    if (fault_ == "two texts") out.text("again");
    if (!chat.spans && fault_ != "spans") return;
    out.span(CHASSIS_LEAF_CONTENT, fault_ == "message" ? 2 : 1, 2, fault_ == "span end" ? 11 : 4);
    out.span(fault_ == "leaf" ? 5 : CHASSIS_LEAF_REASONING, 1, fault_ == "overlap" ? 3 : 4, 6);
  }
  void train(const VocabularyRequest& request, TextSource& texts, FileSink& out) override {
    if (fault_ == "no files") return;
    std::string all = std::to_string(request.vocab_size);
    while (const auto text = texts.next()) all += "|" + std::string(*text);
    out.file(fault_ == "path" ? "../vocabulary" : "vocabulary", all);
    if (fault_ == "twice") out.file("vocabulary", all);
  }

 private:
  std::string fault_;
};

class Misdeclaring final : public Optimizer {
 public:
  static constexpr std::string_view kId = "misdeclaring";
  static constexpr std::string_view kDoc = "invalid states, for tests";
  static const Options& options() {
    static const Options schema = {option("fault", "none")
                                       .choices({"none", "count", "size", "role", "same role", "path", "dtype", "shape",
                                                 "granularity", "block", "initial"})};
    return schema;
  }
  explicit Misdeclaring(const Host& host) : Optimizer(host) {
    const auto fault = option_value<std::string>(host, "fault");
    states_ = {element_state("exp_avg"), element_state("other")};
    if (fault == "count") states_.resize(1000, element_state("exp_avg"));
    chassis_state_desc_t& second = states_[1];
    if (fault == "size") second.struct_size = 0;
    if (fault == "role") second.role = str("");
    if (fault == "same role") second.role = str("exp_avg");
    if (fault == "path") second.role = str("../exp_avg");
    if (fault == "dtype") second.dtype = 77;
    if (fault == "shape") second.shape = 9;
    if (fault == "granularity") second.granularity = 4;
    if (fault == "initial") second.initial = NAN;
    if (fault == "block") second.granularity = CHASSIS_GRANULARITY_BLOCK, second.block = 0;
  }
  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override { return states_; }
  void step(const OptimizerStep&) override {}

 private:
  std::vector<chassis_state_desc_t> states_;
};

class Greedy final : public Optimizer {
 public:
  static constexpr std::string_view kId = "greedy";
  static constexpr std::string_view kDoc = "an option that is a key of the host, for tests";
  static const Options& options() {
    static const Options schema = {option("lr", 0.1)};
    return schema;
  }
  using Optimizer::Optimizer;
  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override { return {}; }
  void step(const OptimizerStep&) override {}
};

// Different states for different parameters, some of which start at a value.
class Choosing final : public Optimizer {
 public:
  static constexpr std::string_view kId = "choosing";
  static constexpr std::string_view kDoc = "blocks for embeddings, whole hidden matrices, elements else; for tests";
  static const Options& options() {
    static const Options schema;
    return schema;
  }
  using Optimizer::Optimizer;
  std::span<const chassis_state_desc_t> states(const OptimizerParameter& parameter) const override {
    static constexpr chassis_state_desc_t kBlocks[] = {block_state("code", 4, CHASSIS_DTYPE_U8, 127),
                                                       per_block_state("absmax", 4)};
    static constexpr chassis_state_desc_t kMatrix[] = {matrix_state("momentum")};
    static constexpr chassis_state_desc_t kElements[] = {element_state("first"), element_state("second")};
    if (parameter.role() == CHASSIS_ROLE_EMBEDDING) return kBlocks;
    if (parameter.is_hidden_matrix()) return kMatrix;
    return kElements;
  }
  // Adds to each element its place in the whole parameter.
  void step(const OptimizerStep& step) override {
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const OptimizerParameter p = step.parameter(i);
      const size_t wanted = p.role() == CHASSIS_ROLE_EMBEDDING ? 2 : p.is_hidden_matrix() ? 1 : 2;
      if (step.num_states(i) != wanted || p.num_local_elements() != step.param(i).num_elements())
        fail_invalid(p.name(), " has ", step.num_states(i), " states and ", p.num_local_elements(), " elements");
      const int64_t columns = p.global_shape().back();
      const int64_t first =
          p.box_begin(0).size() == 2 ? p.box_begin(0)[0] * columns + p.box_begin(0)[1] : p.box_begin(0)[0];
      for (int64_t e = 0; e < step.param(i).num_elements(); ++e)
        step.param(i).data<float>()[e] += static_cast<float>(first + e);
    }
  }
};

// Prints, or ends the process, while the library is being loaded.
__attribute__((constructor)) void print_when_loaded() {
  if (std::getenv("CHASSIS_TEST_PRINT")) std::printf("a constructor says hello\n");
  if (std::getenv("CHASSIS_TEST_ABORT")) std::abort();
}

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Unruly, Misspelt, Misnumbering, Misencoding, Misdeclaring, Greedy, Choosing)
