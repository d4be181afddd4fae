// The C++ glue with a fake host: exceptions, options, calls, tasks, the manifest.
#include <gtest/gtest.h>

#include "chassis/cost.hpp"
#include "chassis/dispatch.hpp"
#include "chassis/experts.hpp"
#include "chassis/ops.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"
#include "chassis/task.hpp"
#include "tests/support/fake_host.hpp"

namespace {

using namespace chassis;

struct Copy final : Kernel {
  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Tensor y = Tensor::create_like(call.host(), x);
    std::copy_n(x.data<float>(), x.num_elements(), y.data<float>());
    call.set_output(0, std::move(y));
    call.save(0, x.retain());
    if (x.data<float>()[0] < 0) fail_invalid("negative");
  }
};

struct CopyOps final : Ops {
  static constexpr std::string_view kId = "copy", kDoc = "copies";
  static constexpr std::string_view kPatterns[] = {"activation", "add+rms_norm"};
  static const Options& options() {
    static const Options schema = {option("eps", 1.0).range(0, 2).doc("small"),
                                   option("mode", "slow").choices({"slow", "fast"}), required<int64_t>("rank"),
                                   option("sizes", std::vector<int64_t>{1, 2}), table("extra")};
    return schema;
  }
  using Ops::Ops;
  void prepare() override { throw std::bad_alloc(); }
  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"function"});
    return 7;
  }
  void infer(const NodeView&, Infer& out) override {
    out.keeps_input(0).saves(CHASSIS_DTYPE_F32, {2});
    const std::vector<chassis_tile_t> tiles = {{128, 64, 1000, 2000}, {64, 64, 500, 1500}};
    out.tiles(tiles, 1);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { return std::make_unique<Copy>(); }
};

struct Second final : Ops {
  static constexpr std::string_view kId = "second", kDoc = "another";
  static constexpr std::string_view kPatterns[] = {"mul"};
  using Ops::Ops;
  double claim(const NodeView&) override { return 0; }
  void infer(const NodeView&, Infer&) override {}
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { throw 1; }
};

struct Later final : Ops {
  static constexpr std::string_view kId = "later", kDoc = "of a kind that hosts accept since 0.25";
  static constexpr std::string_view kPatterns[] = {"mul"};
  static constexpr int kMinHostMinor = 25;
};

using Factory = FactoryOf<CopyOps, Second>;

TEST(Guard, TurnsEveryExceptionIntoAStatus) {
  fake::Host host;
  const auto message = [&](auto body) { return host.message(guard(host.table(), body)); };
  EXPECT_EQ(message([] {}), "ok");
  EXPECT_EQ(message([] { throw Failure(CHASSIS_NOT_FOUND, "no ", 3, " of ", 0.5).with("tensor", "w"); }),
            "no 3 of 0.5 [tensor=w]");
  EXPECT_EQ(message([] { throw std::runtime_error("plain"); }), "plain");
  EXPECT_EQ(message([] { throw std::bad_alloc(); }), "out of memory");
  EXPECT_EQ(message([] { throw 42; }), "an exception of unknown type");
}

TEST(Guard, PassesAStatusOfTheHostOnUnchanged) {
  fake::Host host;
  chassis_status_t* status = host.table()->status_new(host.table(), CHASSIS_DATA_LOSS, str("torn"), nullptr);
  chassis_status_t* out = guard(host.table(), [&] {
    try {
      check(host.table(), status);
    } catch (Failure& failure) {
      EXPECT_EQ(failure.code(), CHASSIS_DATA_LOSS);
      failure.with("file", "a");
      throw;
    }
  });
  EXPECT_EQ(out, status);
  EXPECT_EQ(host.message(out), "torn [file=a]");
}

TEST(Options, BecomeASchema) {
  const chassis_member_t& member = *Factory::member(0);
  ASSERT_EQ(member.num_options, 5u);
  EXPECT_EQ(text_of(member.options[0].default_json), "1.0");
  EXPECT_EQ(member.options[0].max, 2);
  EXPECT_EQ(text_of(member.options[1].default_json), "\"slow\"");
  ASSERT_EQ(member.options[1].num_choices, 2u);
  EXPECT_EQ(text_of(member.options[1].choices[1]), "fast");
  EXPECT_EQ(text_of(member.options[2].default_json), "");
  EXPECT_EQ(text_of(member.options[3].default_json), "[1, 2]");
  EXPECT_EQ(member.options[4].type, CHASSIS_OPTION_TABLE);
}

TEST(Options, AreReadByType) {
  fake::Host table;
  table.options = {{"eps", "0.25"}, {"mode", "\"fast\""}, {"on", "true"}, {"names", R"(["a,b", "c\"d"])"}, {"f", "[]"}};
  const Host host(table.table());
  EXPECT_EQ(option_value<double>(host, "eps"), 0.25);
  EXPECT_EQ(option_value<std::string>(host, "mode"), "fast");
  EXPECT_TRUE(option_value<bool>(host, "on"));
  EXPECT_EQ(option_value<std::vector<std::string>>(host, "names"), (std::vector<std::string>{"a,b", "c\"d"}));
  EXPECT_TRUE(option_value<std::vector<double>>(host, "f").empty());
  EXPECT_THROW(option_value<double>(host, "other"), Failure);
}

TEST(Factory, HasSeveralMembers) {
  fake::Host host;
  EXPECT_EQ(Factory::kTable.num_members, 2u);
  EXPECT_EQ(text_of(Factory::member(1)->id), "second");
  EXPECT_EQ(Factory::member(2), nullptr);
  chassis_instance_t* instance = nullptr;
  EXPECT_EQ(host.message(Factory::create(host.table(), str("ops"), str("third"), &instance)),
            "this library has no member ops/third");
  EXPECT_EQ(instance, nullptr);
  ASSERT_EQ(Factory::create(host.table(), str("ops"), str("second"), &instance), nullptr);
  EXPECT_NE(instance->get_interface(instance, str("chassis.ops/1")), nullptr);
  EXPECT_EQ(instance->get_interface(instance, str("chassis.ops/2")), nullptr);
  instance->destroy(instance);
}

TEST(Manifest, HasTheBuildAndTheMembers) {
  static constexpr auto kNote =
      make_manifest<manifest_size<CopyOps, Second>("license=MIT\n"), CopyOps, Second>("license=MIT\n");
  EXPECT_EQ(std::string(kNote.text, kNote.text_bytes),
            "chassis-manifest=1\nid=glue\nversion=1.2.3\nabi=0.20\nabi-min-host=0.20\ntier=T0\nmember=ops/copy\n"
            "member=ops/second\ncuda=13\nsm=80,ptx90\nlicense=MIT\n");
  EXPECT_EQ(sizeof kNote % 4, 0u);
}

TEST(Manifest, NeedsTheOldestHostThatAcceptsAllMembers) {
  static constexpr auto kNote = make_manifest<manifest_size<Second, Later>(""), Second, Later>("");
  EXPECT_NE(std::string(kNote.text, kNote.text_bytes).find("\nabi-min-host=0.25\n"), std::string::npos);
}

class Growing : public Ops {
 public:
  template <typename T>
  static consteval int min_host_minor() {
    return T::kNew ? 23 : 21;
  }
};
struct Old : Growing {
  static constexpr bool kNew = false;
};
struct New : Growing {
  static constexpr bool kNew = true;
};

TEST(Manifest, NeedsTheHostThatKnowsWhatTheMemberUses) {
  EXPECT_EQ(member_min_host_minor<Second>(), 0);  // that of the library
  EXPECT_EQ(member_min_host_minor<Old>(), 21);
  EXPECT_EQ(member_min_host_minor<New>(), 23);
}

class OneOp : public testing::Test {
 protected:
  OneOp() {
    chassis_instance_t* made = nullptr;
    host_.check(Factory::create(host_.table(), str("ops"), str("copy"), &made));
    instance_ = made;
    table_ = static_cast<const chassis_ops_t*>(made->get_interface(made, str(CHASSIS_OPS_ID)));
  }
  ~OneOp() override { instance_->destroy(instance_); }

  chassis_node_t node() {
    chassis_node_t node{};
    node.struct_size = sizeof node;
    node.name = str("layer.act");
    node.operands = operand_pointers_;
    node.ops = &op_pointer_;
    node.inputs = inputs_;
    node.outputs = outputs_;
    node.num_operands = 2;
    node.num_ops = node.num_inputs = node.num_outputs = 1;
    return node;
  }

  fake::Host host_;
  chassis_instance_t* instance_;
  const chassis_ops_t* table_;
  chassis_attr_t attr_ = {str("function"), CHASSIS_ATTR_STRING, 0, {.list = {"silu", 4}}};
  int64_t shape_[2] = {1, 2};
  const chassis_operand_t operand_ = {
      sizeof(chassis_operand_t), CHASSIS_DTYPE_F32, 2, 1, shape_, nullptr, 0, nullptr, nullptr, nullptr};
  chassis_operand_t operands_[2] = {operand_, operand_};
  const chassis_operand_t* operand_pointers_[2] = {&operands_[0], &operands_[1]};
  uint32_t inputs_[1] = {0}, outputs_[1] = {1};
  chassis_op_view_t op_ = {sizeof op_, 1, str("activation"), &attr_, inputs_, nullptr, outputs_, 1, 0, 1, 0};
  const chassis_op_view_t* op_pointer_ = &op_;
};

TEST(Operands, ShareTheLeadingDimsOfOneNameAndSize) {
  const chassis_str_t dims[] = {str("patches"), str("channels"), str("hidden")};
  const int64_t x[] = {4, 2, 2}, whole[] = {4, 2, 2}, half[] = {4, 1, 2}, other[] = {4, 2};
  const chassis_str_t other_dims[] = {str("patches"), str("hidden")};
  const auto operand = [&](const int64_t* sizes, uint32_t num_dims, const chassis_str_t* names) {
    return chassis_operand_t{.struct_size = sizeof(chassis_operand_t),
                             .dtype = CHASSIS_DTYPE_F32,
                             .num_dims = num_dims,
                             .needs_grad = 1,
                             .local_shape = sizes,
                             .dims = names,
                             .num_components = 0,
                             .components = nullptr,
                             .whole_shape = nullptr,
                             .begin = nullptr};
  };
  const auto shared = [&](const chassis_operand_t& a, const chassis_operand_t& b) {
    return num_shared_dims(OperandView(&a), OperandView(&b));
  };
  EXPECT_EQ(shared(operand(x, 3, dims), operand(whole, 3, dims)), 3);
  EXPECT_EQ(shared(operand(x, 3, dims), operand(whole, 2, dims)), 2);
  EXPECT_EQ(shared(operand(x, 3, dims), operand(half, 3, dims)), 1);
  EXPECT_EQ(shared(operand(x, 3, dims), operand(other, 2, other_dims)), 1);
}

TEST_F(OneOp, RefusesUnknownAttributes) {
  double cost = 0;
  const chassis_node_t plain = node();
  EXPECT_EQ(host_.message(table_->claim(instance_, &plain, &cost)), "ok");
  EXPECT_EQ(cost, 7);
  attr_.name = str("storage");
  EXPECT_EQ(host_.message(table_->claim(instance_, &plain, &cost)), "attribute 'storage' is not supported");
}

TEST_F(OneOp, FailsAClaimThatDoesNotCheckTheAttributes) {
  chassis_instance_t* second = nullptr;
  host_.check(Factory::create(host_.table(), str("ops"), str("second"), &second));
  const auto* table = static_cast<const chassis_ops_t*>(second->get_interface(second, str(CHASSIS_OPS_ID)));
  double cost = 0;
  const chassis_node_t with_attribute = node();
  EXPECT_EQ(host_.message(table->claim(second, &with_attribute, &cost)),
            "claim accepts activation without refuse_attrs_other_than, so that attributes that it does not know would "
            "be ignored");
  op_.num_attrs = 0;
  const chassis_node_t without = node();
  EXPECT_EQ(host_.message(table->claim(second, &without, &cost)), "ok");
  second->destroy(second);
}

TEST_F(OneOp, ReadsOpsAndAttributes) {
  const chassis_node_t raw = node();
  const NodeView view(&raw);
  EXPECT_EQ(view.pattern(), "activation");
  EXPECT_EQ(view.op(0).attr_string("function"), "silu");
  EXPECT_EQ(view.op(0).attr_int("window", 5), 5);
  EXPECT_THROW(view.op(0).attr_int("function", 0), Failure);
  EXPECT_THROW(view.op(0).attr_float("eps"), Failure);
  EXPECT_EQ(view.input(0).size(-1), 2);
  EXPECT_FALSE(view.has_param(0));
}

TEST_F(OneOp, CostsNothingKnownOnAnUnknownDevice) {
  const Host host(host_.table());
  const auto cost_on = [&](uint32_t device_type) {
    chassis_node_t raw = node();
    raw.device_type = device_type;
    return cost_ns(host, NodeView(&raw), 2);
  };
  EXPECT_GT(cost_on(CHASSIS_DEVICE_CPU), cost_on(CHASSIS_DEVICE_CUDA));
  EXPECT_GT(cost_on(CHASSIS_DEVICE_CUDA), 0);
  EXPECT_EQ(cost_on(99), 0);
}

TEST_F(OneOp, ReturnsOutputsOrReleasesThem) {
  const chassis_node_t raw = node();
  void* kernel = nullptr;
  host_.check(table_->create_kernel(instance_, &raw, &kernel));
  const chassis_tensor_t x = host_.make(CHASSIS_DTYPE_F32, {1, 2});
  chassis_tensor_t y = nullptr, saved = nullptr;
  chassis_call_t call{};
  call.struct_size = sizeof call;
  call.flags = CHASSIS_CALL_TRAINING;
  call.inputs = &x;
  call.outputs = &y;
  call.saved = &saved;
  ASSERT_EQ(table_->forward(instance_, kernel, &call), nullptr);
  EXPECT_EQ(saved, x);
  EXPECT_EQ(host_.live_tensors, 2);
  delete fake::tensor(y);
  y = saved = nullptr;
  host_.live_tensors = 1;
  static_cast<float*>(fake::tensor(x)->view.data)[0] = -1;
  EXPECT_EQ(host_.message(table_->forward(instance_, kernel, &call)), "negative");
  EXPECT_EQ(y, nullptr);
  EXPECT_EQ(host_.live_tensors, 1);
  EXPECT_EQ(host_.message(table_->backward_inputs(instance_, kernel, &call)), "this kernel has no backward_inputs");
  table_->destroy_kernel(instance_, kernel);
  delete fake::tensor(x);
}

TEST_F(OneOp, ListsTilesThatOutliveInfer) {
  const chassis_node_t raw = node();
  chassis_infer_t out{};
  out.struct_size = sizeof out;
  host_.check(table_->infer(instance_, &raw, &out));
  ASSERT_EQ(out.num_tiles, 2u);
  EXPECT_EQ(out.tile, 1u);
  EXPECT_EQ(out.tiles[0].queries, 128u);
  EXPECT_EQ(out.tiles[1].shared_backward_bytes, 1500u);
  chassis_infer_t other{};
  EXPECT_THROW(Infer(other).tiles({{64, 64, 500, 1500}}, 1), Failure);
}

// A host of a later minor: its structs are longer, so items of an array are further apart.
TEST_F(OneOp, ReadsTheStructsOfALaterHost) {
  struct LaterOperand {
    chassis_operand_t operand;
    uint64_t appended = ~uint64_t{0};
  } later[2] = {{operands_[0]}, {operands_[1]}};
  for (size_t i = 0; i < 2; ++i) {
    later[i].operand.struct_size = sizeof later[i];
    operand_pointers_[i] = &later[i].operand;
  }
  later[1].operand.dtype = CHASSIS_DTYPE_BF16;
  const chassis_node_t raw = node();
  const NodeView view(&raw);
  EXPECT_EQ(view.output(0).dtype(), CHASSIS_DTYPE_BF16);
  EXPECT_EQ(view.output(0).size(-1), 2);
}

// A host of an earlier minor: members that it does not know are not written. Too short structs are refused.
TEST_F(OneOp, WritesNoMembersThatTheHostDoesNotKnow) {
  chassis_infer_t out;
  std::memset(&out, 0xee, sizeof out);
  out.struct_size = 32;
  chassis_infer_t ours{};
  ours.struct_size = sizeof ours;
  ours.workspace_forward_bytes = 5;
  write_sized(ours, &out);
  EXPECT_EQ(out.struct_size, 32u);
  EXPECT_EQ(out.flags, 0u);
  EXPECT_EQ(out.workspace_forward_bytes, 0xeeeeeeeeeeeeeeeeu);
  chassis_node_t raw = node();
  raw.struct_size = 8;
  double cost = 0;
  EXPECT_EQ(host_.message(table_->claim(instance_, &raw, &cost)),
            "a struct of 8 bytes, expected at least " + std::to_string(CHASSIS_NODE_V1_SIZE));
}

TEST_F(OneOp, ReportsExceptionsOfItsHooks) { EXPECT_EQ(host_.message(instance_->prepare(instance_)), "out of memory"); }

TEST(Host, NamesAMissingService) {
  fake::Host table;
  const Host host(table.table());
  try {
    host.service<chassis_rng_t>();
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "this host has no service chassis.rng/1");
    EXPECT_EQ(failure.code(), CHASSIS_FAILED_PRECONDITION);
  }
}

TEST(ParallelFor, CoversTheRangeAndPassesExceptionsOn) {
  fake::Host table;
  const Host host(table.table());
  std::vector<int> seen(1000);
  parallel_for(host, 1000, 7, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[i];
  });
  EXPECT_EQ(seen, std::vector<int>(1000, 1));
  EXPECT_THROW(parallel_for(host, 10, 1, [](int64_t, int64_t) { throw Failure(CHASSIS_INTERNAL, "in a task"); }),
               Failure);
}

TEST(ExpertRows, SortsThePairsByExpert) {
  const std::vector<int32_t> experts = {2, 0, -1, 2};
  const ExpertRows rows(experts.data(), 4, 3);
  EXPECT_EQ(rows.num_rows(), 3);
  EXPECT_EQ(rows.pair(0), 1);
  EXPECT_EQ(rows.begin(1), rows.end(1));
  EXPECT_EQ(rows.row(2), -1);
  EXPECT_EQ(rows.row(3), 2);
}

TEST(ExpertRows, BlamesTheOpThatChoseAnIndexBeyondTheExperts) {
  const std::pair<int32_t, std::string> cases[] = {{8, "index 8, expected below 8"},
                                                   {-2, "index -2, expected 0 or more, or -1 for none"}};
  for (const auto& [wrong, expected] : cases) {
    const std::vector<int32_t> experts = {7, wrong};
    try {
      ExpertRows(experts.data(), 2, 8);
      FAIL() << "no error for " << wrong;
    } catch (const Failure& failure) {
      const std::string text = failure.what();
      EXPECT_NE(text.find(expected + "; it comes from the model's op that chooses experts"), text.npos) << text;
    }
  }
}

TEST(Tensor, ChecksTypeAndDims) {
  fake::Host table;
  const Host host(table.table());
  Tensor x = Tensor::create(host, CHASSIS_DTYPE_F32, {2, 3});
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(x.stride(0), 3);
  EXPECT_THROW(x.size(2), Failure);
  EXPECT_THROW(x.data<double>(), Failure);
  const Tensor second = x.retain();
  x.reset();
  EXPECT_FALSE(x);
  EXPECT_EQ(table.live_tensors, 1);
}

// A dispatcher that records the arguments of the last call.
struct RecordingDispatcher {
  static inline std::vector<chassis_boxed_t> arguments;
  static chassis_status_t* find(const chassis_dispatch_t*, chassis_str_t, const chassis_operator_t** out) {
    *out = reinterpret_cast<const chassis_operator_t*>(&arguments);
    return nullptr;
  }
  static chassis_status_t* call(const chassis_dispatch_t* d, const chassis_operator_t*, const chassis_boxed_t* in,
                                uint32_t count, chassis_boxed_t* out, uint32_t num_results) {
    arguments.assign(in, in + count);
    auto& host = *static_cast<fake::Host*>(d->impl);
    if (num_results > 0) out[0] = {CHASSIS_BOXED_TENSOR, 0, {.tensor = host.make(CHASSIS_DTYPE_F32, {4})}};
    if (num_results > 1) out[1] = {CHASSIS_BOXED_INT, 0, {.i = 9}};
    return nullptr;
  }
};

TEST(Operator, BoxesEveryKindOfArgument) {
  fake::Host table;
  const chassis_dispatch_t dispatch = {sizeof dispatch,
                                       0,
                                       &table,
                                       &RecordingDispatcher::find,
                                       &RecordingDispatcher::call,
                                       [](const chassis_dispatch_t*, chassis_boxed_t*) {}};
  table.more_services[CHASSIS_DISPATCH_ID] = &dispatch;
  const Host host(table.table());
  const Operator op(host, "aten::anything");
  const Tensor x = Tensor::create(host, CHASSIS_DTYPE_F32, {2});
  const Tensor y = op(x, 3, 0.5, true, std::nullopt, Tensor(), std::vector<int64_t>{1, 2}, DtypeArg{CHASSIS_DTYPE_BF16},
                      "mean", std::array{true, false}, std::optional<double>());
  EXPECT_EQ(y.size(0), 4);
  const uint32_t tags[] = {CHASSIS_BOXED_TENSOR, CHASSIS_BOXED_INT,       CHASSIS_BOXED_FLOAT,    CHASSIS_BOXED_BOOL,
                           CHASSIS_BOXED_NONE,   CHASSIS_BOXED_NONE,      CHASSIS_BOXED_INT_LIST, CHASSIS_BOXED_DTYPE,
                           CHASSIS_BOXED_STRING, CHASSIS_BOXED_BOOL_LIST, CHASSIS_BOXED_NONE};
  ASSERT_EQ(RecordingDispatcher::arguments.size(), std::size(tags));
  for (size_t i = 0; i < std::size(tags); ++i) EXPECT_EQ(RecordingDispatcher::arguments[i].tag, tags[i]) << i;
  EXPECT_EQ(RecordingDispatcher::arguments[0].value.tensor, x.handle());

  const auto mixed = op.results<2>(std::vector<BorrowedTensor>{x, y});
  EXPECT_EQ(mixed[1].i, 9);
  EXPECT_EQ(RecordingDispatcher::arguments[0].tag, CHASSIS_BOXED_TENSOR_LIST);
  EXPECT_EQ(RecordingDispatcher::arguments[0].value.list.len, 2u);
  op.run(x);
  EXPECT_EQ(table.live_tensors, 3);
}

}  // namespace
