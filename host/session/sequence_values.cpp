// An answer's tokens are the positions of its sequence whose labels are not ignored.
#include "host/session/sequence_values.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/graph/output_names.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

std::vector<float> floats_of(const Tensor& tensor) {
  const Tensor here = tensor.to(Dtype::f32).contiguous();
  std::vector<float> values(static_cast<size_t>(here.num_elements()));
  Tensor::borrow(values.data(), here.sizes(), Dtype::f32).copy_from(here);
  return values;
}

const Tensor& output(const StreamValues& outputs, const char* name) {
  const auto found = outputs.find(name);
  CHASSIS_CHECK(found != outputs.end(), std::string("the program gives ") + name);
  return found->second;
}

// Calls body(sequence, index of its first position, labels of its positions).
template <class Body>
void for_sequences(const Batch& batch, const Body& body) {
  const std::span<const int32_t> labels = batch.values("labels");
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const BatchSequence& sequence = batch.sequences[s];
    const auto first = static_cast<size_t>(sequence.row * batch.seq_len + sequence.begin);
    body(s, first, labels.subspan(first, static_cast<size_t>(sequence.facts.length)));
  }
}

void add_logps(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs, std::vector<double>& sums,
               std::vector<double>& tokens) {
  const std::vector<float> values = floats_of(output(outputs, kTokenLogpsOutput));
  for_sequences(batch, [&](size_t, size_t first, std::span<const int32_t> labels) {
    double sum = 0;
    for (size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] == kIgnoreLabel) continue;
      sum += values[first + t];
      if (desc.needs_tokens()) tokens.push_back(values[first + t]);
    }
    sums.push_back(sum);
  });
}

// The index of a sequence's last position.
size_t last_position(const Batch& batch, const BatchSequence& sequence) {
  return static_cast<size_t>(sequence.row * batch.seq_len + sequence.begin + sequence.facts.length - 1);
}

void add_lengths(const ObjectiveDesc& desc, const Batch& batch, ObjectiveBatch& values) {
  if (desc.needs_tokens()) values.first_token.push_back(0);
  for_sequences(batch, [&](size_t s, size_t, std::span<const int32_t> labels) {
    const auto length = static_cast<size_t>(labels.size() - std::ranges::count(labels, kIgnoreLabel));
    values.length.push_back(static_cast<double>(length));
    if (desc.needs_tokens()) values.first_token.push_back(values.first_token.back() + length);
    if (!desc.needs_old_logps()) return;
    const std::vector<double>& old = batch.sequences[s].facts.old_logps;
    CHASSIS_CHECK(old.size() == length, "the data give the log-probability of each token of an answer");
    values.old_token_logp.insert(values.old_token_logp.end(), old.begin(), old.end());
  });
}

// The entries of the teacher, by token and filled up with zeros.
void add_teacher(const ObjectiveDesc& desc, const Batch& batch, ObjectiveBatch& values) {
  for (const BatchSequence& sequence : batch.sequences) {
    const TeacherFacts& teacher = sequence.facts.teacher;
    auto logp = teacher.logps.begin();
    for (const uint32_t count : teacher.counts) {
      values.teacher_count.push_back(count);
      const auto end = logp + static_cast<ptrdiff_t>(count);
      values.teacher_logp.insert(values.teacher_logp.end(), logp, end);
      values.teacher_logp.resize(values.teacher_count.size() * desc.top_k);
      logp = end;
    }
  }
}

void add_top_logps(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs,
                   std::vector<double>& values) {
  const std::vector<float> all = floats_of(output(outputs, kTopLogpsOutput));
  for_sequences(batch, [&](size_t, size_t first, std::span<const int32_t> labels) {
    for (size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] == kIgnoreLabel) continue;
      const float* const row = all.data() + (first + t) * desc.top_k;
      values.insert(values.end(), row, row + desc.top_k);
    }
  });
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

ObjectiveBatch sequence_facts(const ObjectiveDesc& desc, const Batch& batch) {
  ObjectiveBatch values;
  for (const BatchSequence& sequence : batch.sequences) {
    const SequenceFacts& facts = sequence.facts;
    values.role.push_back(static_cast<uint32_t>(facts.role));
    values.unit.push_back(sequence.unit);
    values.margin.push_back(facts.margin);
    CHASSIS_CHECK(facts.targets.size() == desc.num_targets, "the targets of a sequence");
    append(values.target, facts.targets);
  }
  if (!desc.scores()) add_lengths(desc, batch, values);
  if (desc.needs_teacher()) add_teacher(desc, batch, values);
  return values;
}

ObjectiveBatch sequence_values(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs) {
  ObjectiveBatch values = sequence_facts(desc, batch);
  if (desc.scores()) {
    values.score = sequence_scores(batch, outputs, desc.num_scores);
  } else {
    add_logps(desc, batch, outputs, values.logp, values.token_logp);
    if (desc.needs_teacher()) add_top_logps(desc, batch, outputs, values.top_logp);
  }
  return values;
}

std::vector<double> sequence_scores(const Batch& batch, const StreamValues& outputs, size_t num_scores) {
  const std::vector<float> all = floats_of(output(outputs, kScoresOutput));
  std::vector<double> scores;
  for (const BatchSequence& sequence : batch.sequences) {
    const float* const last = all.data() + last_position(batch, sequence) * num_scores;
    scores.insert(scores.end(), last, last + num_scores);
  }
  return scores;
}

void add_reference(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs, ObjectiveBatch& values) {
  add_logps(desc, batch, outputs, values.reference_logp, values.reference_token_logp);
}

void add_reference(const ObjectiveDesc& desc, const Batch& batch, ObjectiveBatch& values) {
  for_sequences(batch, [&](size_t s, size_t, std::span<const int32_t> labels) {
    const ReferenceLogps& reference = batch.sequences[s].reference;
    values.reference_logp.push_back(reference.sum);
    if (!desc.needs_tokens()) return;
    const auto length = static_cast<size_t>(labels.size() - std::ranges::count(labels, kIgnoreLabel));
    CHASSIS_CHECK(reference.tokens.size() == length,
                  "the reference has the log-probability of each token of an answer");
    values.reference_token_logp.insert(values.reference_token_logp.end(), reference.tokens.begin(),
                                       reference.tokens.end());
  });
}

std::vector<ReferenceLogps> reference_logps(const ObjectiveDesc& desc, const Batch& batch,
                                            const StreamValues& outputs) {
  std::vector<double> sums, tokens;
  add_logps(desc, batch, outputs, sums, tokens);
  std::vector<ReferenceLogps> logps(sums.size());
  auto next = tokens.begin();
  for_sequences(batch, [&](size_t s, size_t, std::span<const int32_t> labels) {
    logps[s].sum = sums[s];
    if (!desc.needs_tokens()) return;
    const auto end = next + static_cast<ptrdiff_t>(labels.size()) - std::ranges::count(labels, kIgnoreLabel);
    for (; next != end; ++next) logps[s].tokens.push_back(static_cast<float>(*next));
  });
  return logps;
}

StreamValues output_gradients(const ObjectiveDesc& desc, const Batch& batch, const ObjectiveResult& result,
                              Device device) {
  const auto num_positions = static_cast<size_t>(batch.num_rows * batch.seq_len);
  const auto to_device = [&](const std::vector<float>& gradient, size_t width) {
    std::vector<int64_t> sizes = {batch.num_rows, batch.seq_len};
    if (width > 0) sizes.push_back(static_cast<int64_t>(width));
    const MemoryTag tag(MemoryCategory::kActivations);
    Tensor on_device = Tensor::empty(sizes, Dtype::f32, device);
    on_device.copy_from(Tensor::borrow(const_cast<float*>(gradient.data()), sizes, Dtype::f32));
    return on_device;
  };
  StreamValues out;
  if (desc.scores()) {
    std::vector<float> gradient(num_positions * desc.num_scores);
    for (size_t s = 0; s < batch.sequences.size(); ++s)
      for (size_t k = 0; k < desc.num_scores; ++k)
        gradient[last_position(batch, batch.sequences[s]) * desc.num_scores + k] =
            static_cast<float>(result.grad_score[s * desc.num_scores + k]);
    out[kScoresOutput] = to_device(gradient, desc.num_scores);
    return out;
  }
  std::vector<float> gradient(num_positions), top_gradient(num_positions * desc.top_k);
  size_t token = 0;
  for_sequences(batch, [&](size_t s, size_t first, std::span<const int32_t> labels) {
    for (size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] == kIgnoreLabel) continue;
      const double own = desc.needs_tokens() ? result.grad_token_logp[token] : 0.0;
      gradient[first + t] = static_cast<float>(result.grad_logp[s] + own);
      for (size_t k = 0; k < desc.top_k; ++k)
        top_gradient[(first + t) * desc.top_k + k] = static_cast<float>(result.grad_top_logp[token * desc.top_k + k]);
      ++token;
    }
  });
  out[kTokenLogpsOutput] = to_device(gradient, 0);
  if (desc.needs_teacher()) out[kTopLogpsOutput] = to_device(top_gradient, desc.top_k);
  return out;
}

StreamValues empty_gradients(const StreamValues& outputs) {
  const MemoryTag tag(MemoryCategory::kActivations);
  StreamValues gradients;
  for (const auto& [name, value] : outputs)
    gradients[name] = Tensor::empty(value.sizes(), value.dtype(), value.device());
  return gradients;
}

std::vector<double> term_weights(const std::vector<double>& counts) {
  std::vector<double> weights;
  for (const double count : counts) weights.push_back(count > 0 ? 1 / count : 0.0);
  return weights;
}

void append(ObjectiveBatch& to, const ObjectiveBatch& batch) {
  const uint64_t next_unit = to.unit.empty() ? 0 : to.unit.back() + 1;
  for (const uint64_t unit : batch.unit) to.unit.push_back(next_unit + unit);
  to.role.insert(to.role.end(), batch.role.begin(), batch.role.end());
  if (!batch.first_token.empty()) {
    if (to.first_token.empty()) to.first_token.push_back(0);
    const uint64_t before = to.first_token.back();
    for (size_t s = 1; s < batch.first_token.size(); ++s) to.first_token.push_back(before + batch.first_token[s]);
  }
  for (const auto member : kSequenceArrays) append(to.*member, batch.*member);
}

}  // namespace chassis
