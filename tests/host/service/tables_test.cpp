// The services as a plugin calls them, through their C tables.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chassis/service/dispatch.h"
#include "chassis/service/log.h"
#include "chassis/service/memory.h"
#include "chassis/service/metrics.h"
#include "chassis/service/options.h"
#include "chassis/service/rng.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/service/host_services.hpp"
#include "host/service/operators.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

class Tables : public testing::Test {
 protected:
  Tables() {
    manifest_.id = "stub";
    manifest_.version = "1.0.0";
    for (const char* name :
         {"aten::mm", "aten::add_.Tensor", "aten::topk", "aten::split.Tensor", "aten::sum.dim_IntList"})
      manifest_.operators.push_back(operator_schema(name));
    InstanceContext context;
    context.plugin_id = "stub";
    context.kind = "ops";
    context.member_id = "stub";
    context.manifest = &manifest_;
    context.options = Json::parse(R"({"lr": 0.5, "steps": 3, "name": "x", "on": true, "list": [1, 2]})");
    context.origins = {{"lr", "run.toml:3:5"}, {"steps", "default"}};
    instance_ = services_.attach(context);
  }
  template <typename Table>
  const Table* table(const char* id) {
    return static_cast<const Table*>(instance_->get(id));
  }
  // The text of a failure; empty if there is none.
  static std::string text(chassis_status_t* status) {
    std::string out = status ? status_text(status) : "";
    if (status) status_release(status);
    return out;
  }
  static int32_t code(chassis_status_t* status) {
    const int32_t out = status_code(status);
    if (status) status_release(status);
    return out;
  }
  static chassis_str_t str(const char* text) { return {text, std::strlen(text)}; }

  chassis_tensor_t matrix(int64_t rows, int64_t columns, float value) {
    const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
    const int64_t sizes[] = {rows, columns};
    chassis_tensor_t out = nullptr;
    EXPECT_EQ(text(tensors->create(tensors, CHASSIS_DTYPE_F32, CHASSIS_DEVICE_CPU, 0, 2, sizes, &out)), "");
    Tensor::share(out).fill(value);
    return out;
  }
  void release(chassis_tensor_t tensor) {
    const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
    tensors->release(tensors, tensor);
  }
  static chassis_boxed_t boxed(chassis_tensor_t tensor) {
    return {CHASSIS_BOXED_TENSOR, 0, {.tensor = tensor}};
  }
  static chassis_boxed_t boxed(int64_t value) { return {CHASSIS_BOXED_INT, 0, {.i = value}}; }

  MetricsStore metrics_;
  HostServices services_{7, metrics_};
  Manifest manifest_;
  std::unique_ptr<InstanceServices> instance_;
};

TEST(OperatorSchema, MayHaveMoreArgumentsWithDefaults) {
  const std::string declared = "aten::f(Tensor a, *, float? s=None) -> (Tensor b, Tensor c)";
  EXPECT_TRUE(serves_schema(declared, declared));
  EXPECT_TRUE(serves_schema("aten::f(Tensor a, *, float? s=None, int? n=None, Tensor? t=None) -> (Tensor b, Tensor c)",
                            declared));
  EXPECT_FALSE(serves_schema("aten::f(Tensor a, *, float? s=None, int n) -> (Tensor b, Tensor c)", declared));
  EXPECT_FALSE(serves_schema("aten::f(Tensor a, *, int? n=None, float? s=None) -> (Tensor b, Tensor c)", declared));
  EXPECT_FALSE(serves_schema("aten::f(Tensor a, *, float? s=None, int? n=None) -> Tensor b", declared));
  EXPECT_FALSE(serves_schema("aten::f(Tensor a, *, float? s=None2) -> (Tensor b, Tensor c)", declared));
  EXPECT_FALSE(serves_schema("aten::f(Tensor a) -> (Tensor b, Tensor c)", declared));
}

TEST_F(Tables, AreOfferedByName) {
  EXPECT_TRUE(services_.offers(CHASSIS_DISPATCH_ID));
  EXPECT_FALSE(services_.offers("chassis.dispatch/2"));
  EXPECT_EQ(instance_->get("chassis.nothing/1"), nullptr);
  EXPECT_EQ(services_.torch_version().substr(0, 2), "2.");
}

TEST_F(Tables, DescribeATensorWithoutLibTorch) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  chassis_tensor_t tensor = matrix(2, 3, 1.5f);
  chassis_tensor_view_t view{};
  view.struct_size = sizeof view;
  tensors->view(tensor, &view);
  EXPECT_EQ(view.dtype, CHASSIS_DTYPE_F32);
  EXPECT_EQ(view.num_dims, 2u);
  EXPECT_EQ(view.sizes[1], 3);
  EXPECT_EQ(view.strides[0], 3);
  EXPECT_EQ(static_cast<float*>(view.data)[5], 1.5f);
  release(tensor);
}

TEST_F(Tables, FillAViewOnlyUpToTheCallersStructSize) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  chassis_tensor_t tensor = matrix(2, 3, 0);
  chassis_tensor_view_t view;
  std::memset(&view, 0x5a, sizeof view);
  view.struct_size = offsetof(chassis_tensor_view_t, num_dims);
  tensors->view(tensor, &view);
  EXPECT_EQ(view.num_elements, 6);
  EXPECT_EQ(view.num_dims, 0x5a5a5a5au);
  release(tensor);
}

TEST_F(Tables, CountTheTensorsThatAPluginHolds) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  EXPECT_EQ(instance_->live_tensors(), 0);
  chassis_tensor_t first = matrix(1, 1, 0), second = nullptr;
  EXPECT_EQ(text(tensors->retain(tensors, first, &second)), "");
  EXPECT_EQ(instance_->live_tensors(), 2);
  release(first);
  EXPECT_EQ(instance_->live_tensors(), 1);
  const Tensor hosts = Tensor::adopt(second);  // handed over as an output
  EXPECT_EQ(instance_->live_tensors(), 0);
}

TEST_F(Tables, CountAndIgnoreTheReleaseOfATensorNotOwned) {
  const int64_t sizes[] = {2};
  const Tensor hosts = Tensor::zeros(sizes, Dtype::f32);
  release(hosts.handle());
  EXPECT_EQ(hosts.num_elements(), 2);
  bool counted = false;
  for (const auto& [key, times] : counted_warnings())
    counted |= key == "tensors that 'stub' released without owning them";
  EXPECT_TRUE(counted);
}

TEST_F(Tables, RefuseInvalidShapesAndDtypes) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  const int64_t negative[] = {-1};
  chassis_tensor_t out = nullptr;
  EXPECT_NE(text(tensors->create(tensors, CHASSIS_DTYPE_F32, CHASSIS_DEVICE_CPU, 0, 1, negative, &out)), "");
  EXPECT_NE(text(tensors->create(tensors, 99, CHASSIS_DEVICE_CPU, 0, 0, nullptr, &out)), "");
  EXPECT_EQ(out, nullptr);
}

TEST_F(Tables, ReleaseMemoryOfAPluginWithTheLastHandle) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  float data[] = {1, 2, 3, 4};
  int released = 0;
  const int64_t sizes[] = {4};
  chassis_tensor_t tensor = nullptr, second = nullptr;
  EXPECT_EQ(text(tensors->from_memory(tensors, data, CHASSIS_DTYPE_F32, CHASSIS_DEVICE_CPU, 0, 1, sizes,
                                      [](void* context) { ++*static_cast<int*>(context); }, &released, &tensor)),
            "");
  EXPECT_EQ(text(tensors->retain(tensors, tensor, &second)), "");
  release(tensor);
  EXPECT_EQ(released, 0);
  release(second);
  EXPECT_EQ(released, 1);
}

TEST_F(Tables, ConvertToDlpackAndBack) {
  const auto* tensors = table<chassis_tensor_service_t>(CHASSIS_TENSOR_ID);
  chassis_tensor_t tensor = matrix(2, 2, 4), back = nullptr;
  DLManagedTensorVersioned* dlpack = nullptr;
  EXPECT_EQ(text(tensors->to_dlpack(tensors, tensor, &dlpack)), "");
  EXPECT_EQ(text(tensors->from_dlpack(tensors, dlpack, &back)), "");
  EXPECT_EQ(Tensor::share(tensor).data(), Tensor::share(back).data());
  release(tensor);
  release(back);
}

TEST_F(Tables, CallOperatorsByName) {
  const auto* dispatch = table<chassis_dispatch_t>(CHASSIS_DISPATCH_ID);
  const chassis_operator_t* mm = nullptr;
  ASSERT_EQ(text(dispatch->find(dispatch, str("aten::mm"), &mm)), "");
  chassis_tensor_t a = matrix(2, 3, 2), b = matrix(3, 4, 5);
  const chassis_boxed_t arguments[] = {boxed(a), boxed(b)};
  chassis_boxed_t result{};
  ASSERT_EQ(text(dispatch->call(dispatch, mm, arguments, 2, &result, 1)), "");
  EXPECT_EQ(instance_->live_tensors(), 3);
  EXPECT_EQ(Tensor::share(result.value.tensor).data_as<float>()[7], 30);
  for (chassis_tensor_t tensor : {a, b, result.value.tensor}) release(tensor);
}

TEST_F(Tables, ReturnSeveralResultsAndLists) {
  const auto* dispatch = table<chassis_dispatch_t>(CHASSIS_DISPATCH_ID);
  const chassis_operator_t *topk = nullptr, *split = nullptr;
  ASSERT_EQ(text(dispatch->find(dispatch, str("aten::topk"), &topk)), "");
  ASSERT_EQ(text(dispatch->find(dispatch, str("aten::split.Tensor"), &split)), "");
  chassis_tensor_t x = matrix(2, 6, 1);
  chassis_boxed_t results[2] = {};
  const chassis_boxed_t two[] = {boxed(x), boxed(int64_t{2})};
  ASSERT_EQ(text(dispatch->call(dispatch, topk, two, 2, results, 2)), "");
  EXPECT_EQ(Tensor::share(results[1].value.tensor).dtype(), Dtype::i64);
  for (chassis_boxed_t& result : results) release(result.value.tensor);

  const chassis_boxed_t along[] = {boxed(x), boxed(int64_t{4}), boxed(int64_t{1})};
  ASSERT_EQ(text(dispatch->call(dispatch, split, along, 3, results, 1)), "");
  ASSERT_EQ(results[0].tag, CHASSIS_BOXED_TENSOR_LIST);
  ASSERT_EQ(results[0].value.list.len, 2u);
  const auto* parts = static_cast<const chassis_tensor_t*>(results[0].value.list.ptr);
  EXPECT_EQ(Tensor::share(parts[1]).size(1), 2);
  release(parts[0]);
  release(parts[1]);
  dispatch->free_list(dispatch, &results[0]);
  release(x);
  EXPECT_EQ(instance_->live_tensors(), 0);
}

TEST_F(Tables, RefuseAnOperatorThatIsNotInTheManifest) {
  const auto* dispatch = table<chassis_dispatch_t>(CHASSIS_DISPATCH_ID);
  const chassis_operator_t* op = nullptr;
  EXPECT_NE(text(dispatch->find(dispatch, str("aten::bmm"), &op)).find("not declared in the manifest"),
            std::string::npos);
}

TEST_F(Tables, RefuseAnotherSchemaAndNameBoth) {
  Manifest other = manifest_;
  other.operators = {"aten::mm(Tensor self, Tensor mat2, int extra) -> Tensor"};
  try {
    services_.check_operators(other);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kPlugin);
    EXPECT_NE(text.find("int extra"), std::string::npos) << text;
    EXPECT_NE(text.find("aten::mm(Tensor self, Tensor mat2) -> Tensor"), std::string::npos) << text;
  }
  other.operators = {"aten::no_such_thing(Tensor self) -> Tensor"};
  EXPECT_THROW(services_.check_operators(other), Error);
}

TEST_F(Tables, NameTheOperatorAndItsTensorsInAFailure) {
  const auto* dispatch = table<chassis_dispatch_t>(CHASSIS_DISPATCH_ID);
  const chassis_operator_t* mm = nullptr;
  ASSERT_EQ(text(dispatch->find(dispatch, str("aten::mm"), &mm)), "");
  chassis_tensor_t a = matrix(2, 3, 2), b = matrix(2, 4, 5);
  chassis_boxed_t arguments[] = {boxed(a), boxed(b)};
  chassis_boxed_t result{};
  const std::string wrong_shape = text(dispatch->call(dispatch, mm, arguments, 2, &result, 1));
  EXPECT_NE(wrong_shape.find("aten::mm"), std::string::npos) << wrong_shape;
  EXPECT_NE(wrong_shape.find("Float[2, 3]"), std::string::npos) << wrong_shape;
  EXPECT_NE(text(dispatch->call(dispatch, mm, arguments, 1, &result, 1)), "");  // too few arguments
  arguments[1] = boxed(int64_t{1});
  EXPECT_NE(text(dispatch->call(dispatch, mm, arguments, 2, &result, 1)), "");  // an argument of the wrong type
  EXPECT_NE(text(dispatch->call(dispatch, mm, arguments, 2, &result, 0)), "");
  release(a);
  release(b);
}

TEST_F(Tables, ReadOptionsByType) {
  const auto* options = table<chassis_options_t>(CHASSIS_OPTIONS_ID);
  double lr = 0;
  int64_t steps = 0;
  uint32_t on = 0;
  chassis_str_t value{};
  EXPECT_EQ(text(options->get_float(options, str("lr"), &lr)), "");
  EXPECT_EQ(lr, 0.5);
  EXPECT_EQ(text(options->get_float(options, str("steps"), &lr)), "");
  EXPECT_EQ(lr, 3);
  EXPECT_EQ(text(options->get_int(options, str("steps"), &steps)), "");
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(text(options->get_bool(options, str("on"), &on)), "");
  EXPECT_EQ(on, 1u);
  EXPECT_EQ(text(options->get_string(options, str("name"), &value)), "");
  EXPECT_EQ(view_of(value), "x");
  EXPECT_EQ(text(options->get_json(options, str("list"), &value)), "");
  EXPECT_EQ(view_of(value), "[1,2]");
  EXPECT_EQ(text(options->origin(options, str("lr"), &value)), "");
  EXPECT_EQ(view_of(value), "run.toml:3:5");
  EXPECT_EQ(code(options->get_int(options, str("lr"), &steps)), CHASSIS_INVALID_ARGUMENT);
  EXPECT_EQ(code(options->get_int(options, str("nothing"), &steps)), CHASSIS_NOT_FOUND);
}

TEST_F(Tables, CountScratchMemory) {
  const auto* memory = table<chassis_memory_t>(CHASSIS_MEMORY_ID);
  void* data = nullptr;
  EXPECT_EQ(text(memory->alloc(memory, 1 << 20, &data)), "");
  std::memset(data, 1, 1 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  memory->free(memory, data);
  uint64_t live = 1, peak = 0;
  memory->usage(memory, CHASSIS_MEMORY_WORKSPACE, &live, &peak);
  EXPECT_LE(live, peak);
}

TEST_F(Tables, RunEveryIndexOfALoopOnce) {
  const auto* task = table<chassis_task_t>(CHASSIS_TASK_ID);
  EXPECT_GE(task->num_threads(task), 1u);
  std::vector<std::atomic<int>> seen(1000);
  task->parallel_for(
      task, 1000, 10,
      [](void* context, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++(*static_cast<std::vector<std::atomic<int>>*>(context))[i];
      },
      &seen);
  for (const auto& times : seen) EXPECT_EQ(times, 1);
  task->parallel_for(task, 0, 1, [](void*, int64_t, int64_t) { FAIL(); }, nullptr);
}

TEST_F(Tables, DieIfAnotherThreadCallsAFunctionOfTheStep) {
#ifdef CHASSIS_THREAD_ROLES
  const auto* task = table<chassis_task_t>(CHASSIS_TASK_ID);
  const auto* metrics = table<chassis_metrics_t>(CHASSIS_METRICS_ID);
  EXPECT_DEATH(std::thread([&] { task->parallel_for(task, 0, 1, nullptr, nullptr); }).join(),
               "chassis.task/1 parallel_for is called by a thread that may not call it");
  const auto in_a_chunk = [](void* context, int64_t, int64_t) {
    const auto* table = static_cast<const chassis_metrics_t*>(context);
    table->set(table, str("tokens"), 1);
  };
  EXPECT_DEATH(task->parallel_for(task, 1, 1, in_a_chunk, const_cast<chassis_metrics_t*>(metrics)),
               "chassis.metrics/1 set is called by a thread that may not call it");
#else
  GTEST_SKIP() << "thread roles are asserted in debug and sanitizer builds";
#endif
}

TEST_F(Tables, PrefixMetricsWithTheMember) {
  const auto* metrics = table<chassis_metrics_t>(CHASSIS_METRICS_ID);
  metrics->set(metrics, str("tokens"), 3);
  metrics->add(metrics, str("tokens"), 4);
  EXPECT_EQ(metrics_.take(), (MetricsStore::Values{{"stub/tokens", 7}}));
}

TEST_F(Tables, MakeRandomStreamsOfTheRunsSeed) {
  HostServices other(8, metrics_);
  InstanceContext context;
  context.manifest = &manifest_;
  const auto instance = other.attach(context);
  const auto* here = table<chassis_rng_t>(CHASSIS_RNG_ID);
  const auto* there = static_cast<const chassis_rng_t*>(instance->get(CHASSIS_RNG_ID));
  float a[8], b[8];
  here->normal(here, str("x"), 0, 8, a);
  there->normal(there, str("x"), 0, 8, b);
  EXPECT_NE(std::memcmp(a, b, sizeof a), 0);
}

}  // namespace
}  // namespace chassis
