// Saves small checkpoints whose contents depend on their step, for tests with a failing disk.
#pragma once

#include "fixture.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/inspect.hpp"

namespace chassis::testing {

constexpr uint64_t kStepBucketBytes = 1 << 17;  // large enough for direct writes

inline Model model_of_step(int64_t step) {
  Model model;
  model.add("a", Dtype::f32, {200, 100}, static_cast<uint64_t>(step))
      .add("b", Dtype::f32, {30, 20}, static_cast<uint64_t>(step));
  return model;
}

// Saves as a run does: publishes, updates `latest`, removes older ones.
inline void save_step(CheckpointRoot& root, int64_t step, int64_t keep_last) {
  const BucketPair buckets(kStepBucketBytes);
  const Model model = model_of_step(step);
  SaveRequest request = request_for(model, root.path(), step_directory_name(step), step);
  request.on_published = [&] {
    root.set_latest(request.name);
    root.prune(keep_last);
  };
  CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request);
}

inline void expect_whole(const CheckpointInfo& info) {
  const BucketPair buckets(kStepBucketBytes);
  ASSERT_EQ(info.defect, "") << info.path;
  ASSERT_TRUE(verify_checkpoint(info.path, buckets).ok()) << info.path;
  const Model model = model_of_step(info.step);
  CheckpointReader reader(info.path, native());
  const auto loaded = load_all(reader, model.load_tensors(), buckets);
  for (const Descriptor& d : model.descriptors)
    EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.wholes.at(d.fqn))) << info.path << " " << d.fqn;
}

}  // namespace chassis::testing
