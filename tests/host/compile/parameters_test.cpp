#include "host/compile/parameters.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

class Parameters : public testing::Test {
 protected:
  Program program_ = test::SmallModel{}.program();
  ProgramLayout layout_;
};

TEST_F(Parameters, AreStoredInFp32IfTheyAreTrained) {
  const ParameterTable parameters(program_, layout_, {Dtype::bf16, [](ParameterTable& all) {
                                                        for (const auto& p : all.all())
                                                          p->trainable = p->name == "embed.weight";
                                                      }});
  EXPECT_EQ(parameters.compute(), Dtype::bf16);
  for (const auto& p : parameters.all())
    EXPECT_EQ(p->descriptor.dtype, p->name == "embed.weight" ? Dtype::f32 : Dtype::bf16) << p->name;
}

TEST_F(Parameters, AreFreedWithTheirStorage) {
  ParameterTable parameters(program_, layout_);
  std::optional<ParameterStorage> storage(std::in_place, parameters, Device{});
  parameters.initialize(7);
  for (const auto& p : parameters.all()) p->gradient = Tensor::zeros(p->local_shape, Dtype::f32);
  std::optional<ParameterStorage> moved(std::move(storage));
  storage.reset();
  EXPECT_TRUE(parameters.all()[0]->value);
  moved.reset();
  for (const auto& p : parameters.all()) EXPECT_FALSE(p->value || p->shard || p->gradient) << p->name;
}

TEST_F(Parameters, ArePlacedOnlyWhileNothingIsAllocated) {
  ParameterTable parameters(program_, layout_);
  std::optional<ParameterStorage> storage(std::in_place, parameters, Device{});
  EXPECT_HAS(test::refusal([&] { parameters.place(MeshShape({{"tp", 2}}), 1); }), "placed before they are allocated");
  EXPECT_HAS(test::refusal([&] { const ParameterStorage second(parameters, Device{}); }), "allocated once");
  storage.reset();
  parameters.place(MeshShape({{"tp", 2}}), 1);
  EXPECT_EQ(parameters.rank(), 1);
}

}  // namespace
}  // namespace chassis
