// Micro-batches pass through the reference first, then through the model, and in training through it again.
#include "host/session/objective_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "host/base/error.hpp"
#include "host/service/step_place.hpp"
#include "host/session/fields.hpp"

namespace chassis {
namespace {

// The sizes of a batch's arrays, which others need to read its numbers.
constexpr size_t kNumSizes = std::size(kSequenceArrays) + 2;
std::vector<double> sizes_of(const ObjectiveBatch& batch) {
  std::vector<double> sizes = {static_cast<double>(batch.role.size()), static_cast<double>(batch.first_token.size())};
  for (const auto array : kSequenceArrays) sizes.push_back(static_cast<double>((batch.*array).size()));
  return sizes;
}

// Integers below 2^53 are exact as doubles.
void write(const ObjectiveBatch& batch, std::span<double> to) {
  auto at = to.begin();
  at = std::copy(batch.role.begin(), batch.role.end(), at);
  at = std::copy(batch.unit.begin(), batch.unit.end(), at);
  at = std::copy(batch.first_token.begin(), batch.first_token.end(), at);
  // NaN, a target that is not given, would make the sum of ranks NaN in the same place, and is.
  for (const auto array : kSequenceArrays) at = std::copy((batch.*array).begin(), (batch.*array).end(), at);
}

ObjectiveBatch read(std::span<const double> sizes, const double*& from) {
  ObjectiveBatch batch;
  const auto take = [&](auto& values, double size) {
    values.assign(from, from + static_cast<size_t>(size));
    from += static_cast<size_t>(size);
  };
  take(batch.role, sizes[0]);
  take(batch.unit, sizes[0]);
  take(batch.first_token, sizes[1]);
  size_t next = 2;
  for (const auto array : kSequenceArrays) take(batch.*array, sizes[next++]);
  return batch;
}

void add_each(std::vector<double>& to, const std::vector<double>& more) {
  for (size_t i = 0; i < more.size(); ++i) to[i] += more[i];
}

}  // namespace

ObjectiveStep::ObjectiveStep(Session& session, ReferenceModel* reference)
    : session_(session), objective_(*session.objective()), reference_(reference) {}

ObjectiveBatch ObjectiveStep::values_of(const Batch& batch) {
  const StreamValues outputs = session_.executor().outputs(Purpose::kLoss, to_fields(batch, session_.device()));
  return outputs.empty() ? ObjectiveBatch() : sequence_values(desc(), batch, outputs);
}

void ObjectiveStep::add_reference_of(const Batch& batch, ObjectiveBatch& values) {
  if (is_precomputed()) return add_reference(desc(), batch, values);
  if (reference_ == nullptr) return;
  const StreamValues outputs = reference_->outputs(to_fields(batch, session_.device()));
  if (!outputs.empty()) add_reference(desc(), batch, outputs, values);
}

std::vector<ObjectiveBatch> ObjectiveStep::exchanged(const std::vector<ObjectiveBatch>& own) const {
  const Ranks ranks = session_.ranks();
  const auto num_ranks = static_cast<size_t>(ranks.num_data_ranks()), rank = static_cast<size_t>(ranks.data_rank());
  std::vector<double> sizes(own.size() * num_ranks * kNumSizes);
  const auto place = [&](size_t i, size_t r) { return i * num_ranks + r; };
  if (ranks.counts_rows())
    for (size_t i = 0; i < own.size(); ++i)
      std::ranges::copy(sizes_of(own[i]), sizes.begin() + static_cast<ptrdiff_t>(place(i, rank) * kNumSizes));
  ranks.sum(sizes, "sizes of an objective's batches");
  std::vector<size_t> begin = {0};
  const auto sizes_at = [&](size_t batch) {
    return std::span<const double>(sizes).subspan(batch * kNumSizes, kNumSizes);
  };
  for (size_t batch = 0; batch < own.size() * num_ranks; ++batch) {
    const auto s = sizes_at(batch);
    double count = 2 * s[0];
    for (size_t i = 1; i < kNumSizes; ++i) count += s[i];
    begin.push_back(begin.back() + static_cast<size_t>(count));
  }
  std::vector<double> numbers(begin.back());
  if (ranks.counts_rows())
    for (size_t i = 0; i < own.size(); ++i) write(own[i], std::span(numbers).subspan(begin[place(i, rank)]));
  ranks.sum(numbers, "values of an objective's batches");
  std::vector<ObjectiveBatch> all;
  const double* from = numbers.data();
  for (size_t batch = 0; batch < own.size() * num_ranks; ++batch) all.push_back(read(sizes_at(batch), from));
  return all;
}

void ObjectiveStep::begin(const std::vector<Batch>& micro_batches) {
  micro_batches_ = &micro_batches;
  references_.assign(micro_batches.size(), {});
  sequence_states_.assign(micro_batches.size(), {});
  state_.clear();
  terms_.assign(desc().terms.size(), 0.0);
  sums_.assign(desc().num_sums, 0.0);
  distance_ = 0;
  enter_phase("reference");
  for (size_t m = 0; m < micro_batches.size(); ++m) add_reference_of(micro_batches[m], references_[m]);
  if (reference_ != nullptr) reference_->finish_step();
  if (!desc().needs_global()) {
    std::vector<double> counts(desc().terms.size());
    if (session_.ranks().counts_rows())
      for (const Batch& batch : micro_batches) add_each(counts, counts_of(desc(), sequence_facts(desc(), batch)));
    session_.ranks().sum(counts, "counts of an objective");
    term_weights_ = term_weights(counts);
    return;
  }
  enter_phase("values for the objective");
  std::vector<ObjectiveBatch> own(micro_batches.size());
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    own[m] = values_of(micro_batches[m]);
    if (own[m].role.empty()) continue;
    own[m].reference_logp = references_[m].reference_logp;
    own[m].reference_token_logp = references_[m].reference_token_logp;
  }
  session_.ranks().events().finish_step();
  const std::vector<ObjectiveBatch> all = exchanged(own);
  ObjectiveBatch global;
  std::vector<size_t> begin = {0};
  for (const ObjectiveBatch& batch : all) {
    append(global, batch);
    begin.push_back(global.role.size());
  }
  term_weights_ = term_weights(counts_of(desc(), global));
  std::vector<double> sequence_state;
  objective_.plugin().prepare(global, state_, sequence_state);
  const auto num_ranks = static_cast<size_t>(session_.ranks().num_data_ranks());
  const auto rank = static_cast<size_t>(session_.ranks().data_rank());
  const size_t width = desc().state_per_sequence;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    const size_t at = m * num_ranks + rank;
    sequence_states_[m].assign(sequence_state.begin() + static_cast<ptrdiff_t>(begin[at] * width),
                               sequence_state.begin() + static_cast<ptrdiff_t>(begin[at + 1] * width));
  }
}

ObjectiveValue ObjectiveStep::value(int microbatch, const StreamValues& outputs) {
  const auto m = static_cast<size_t>(microbatch);
  const Batch& batch = (*micro_batches_)[m];
  ObjectiveBatch values = sequence_values(desc(), batch, outputs);
  values.reference_logp = references_[m].reference_logp;
  values.reference_token_logp = references_[m].reference_token_logp;
  for (size_t s = 0; s < values.reference_logp.size(); ++s)
    distance_ = std::max(distance_, std::abs(values.logp[s] - values.reference_logp[s]) / values.length[s]);
  values.state = state_;
  values.sequence_state = sequence_states_[m];
  values.term_weight = term_weights_;
  const ObjectiveResult result = objective_.plugin().evaluate(values, true);
  add_each(terms_, result.terms);
  add_each(sums_, result.sums);
  ObjectiveValue out;
  out.loss = loss_of(result);
  out.gradients = output_gradients(desc(), batch, result, session_.device());
  return out;
}

std::vector<double> ObjectiveStep::sums() const {
  std::vector<double> all(terms_.size() + sums_.size() + 1);
  if (!session_.ranks().counts_rows()) return all;
  std::ranges::copy(terms_, all.begin());
  std::ranges::copy(sums_, all.begin() + static_cast<ptrdiff_t>(terms_.size()));
  all.back() = distance_ > farthest_at_start() ? 1.0 : 0.0;
  return all;
}

double ObjectiveStep::loss_of(const ObjectiveResult& result) const {
  return std::inner_product(result.terms.begin(), result.terms.end(), term_weights_.begin(), 0.0);
}

double ObjectiveStep::farthest_at_start() const { return session_.compute() == Dtype::f32 ? 1e-4 : 2e-2; }

void ObjectiveStep::require_equal_to_reference(const std::vector<double>& sums) const {
  if (!desc().needs_reference() || session_.settings().reference.path.is_set() || sums.back() == 0) return;
  throw Error(ExitCode::kNumeric,
              fmt::format("before the first step the model and its reference are the same, but log-probabilities of "
                          "answers differ by {:g} per token on this rank; {:g} can be rounding",
                          distance_, farthest_at_start()))
      .hint("choose other plugins in [kernels] or [attention], or report this");
}

ObjectiveMetrics ObjectiveStep::metrics(const std::vector<double>& sums) const {
  const size_t num_terms = desc().terms.size();
  ObjectiveMetrics named;
  if (num_terms > 1)
    for (size_t i = 0; i < num_terms; ++i)
      named.emplace_back("loss/" + desc().terms[i].name, sums[i] * term_weights_[i]);
  const std::vector<double> values =
      objective_.plugin().metrics({sums.begin() + static_cast<ptrdiff_t>(num_terms),
                                   sums.begin() + static_cast<ptrdiff_t>(num_terms + desc().num_sums)});
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) named.emplace_back(desc().metrics[i].name, values[i]);
  return named;
}

void ObjectiveStep::add(const Batch& batch) {
  if (sums_at_once()) return add_sums(values_of(batch));
  ObjectiveBatch& values = added_.emplace_back(values_of(batch));
  // Ranks without the last stage have no values; the reference runs on all of them.
  if (!is_precomputed() || !values.role.empty()) add_reference_of(batch, values);
}

void ObjectiveStep::add_sums(ObjectiveBatch values) {
  added_sums_.resize(desc().terms.size() * 2 + desc().num_sums + 1);
  if (values.role.empty() || !session_.ranks().counts_rows()) return;
  values.term_weight.assign(desc().terms.size(), 1.0);
  const ObjectiveResult result = objective_.plugin().evaluate(values, false);
  std::vector<double> sums = result.terms;
  sums.insert(sums.end(), result.sums.begin(), result.sums.end());
  const std::vector<double> counts = counts_of(desc(), values);
  sums.insert(sums.end(), counts.begin(), counts.end());
  sums.push_back(static_cast<double>(values.unit.back() + 1));
  add_each(added_sums_, sums);
}

ObjectiveStep::Evaluation ObjectiveStep::finish_sums() {
  std::vector<double> sums = std::exchange(added_sums_, {});
  sums.resize(desc().terms.size() * 2 + desc().num_sums + 1);
  session_.ranks().sum(sums, "sums of an evaluation by the objective");
  Evaluation out;
  out.num_units = static_cast<uint64_t>(sums.back());
  sums.pop_back();
  const auto counts = sums.end() - static_cast<ptrdiff_t>(desc().terms.size());
  term_weights_ = term_weights({counts, sums.end()});
  sums.erase(counts, sums.end());
  out.loss = std::inner_product(term_weights_.begin(), term_weights_.end(), sums.begin(), 0.0);
  out.metrics = metrics(sums);
  return out;
}

ObjectiveStep::Evaluation ObjectiveStep::finish() {
  session_.ranks().events().finish_step();
  if (reference_ != nullptr) reference_->finish_step();
  if (sums_at_once()) return finish_sums();
  ObjectiveBatch all;
  for (const ObjectiveBatch& batch : exchanged(added_)) append(all, batch);
  added_.clear();
  all.term_weight = term_weights_ = term_weights(counts_of(desc(), all));
  if (desc().needs_global()) objective_.plugin().prepare(all, all.state, all.sequence_state);
  const ObjectiveResult result = objective_.plugin().evaluate(all, false);
  Evaluation out;
  out.num_units = all.unit.empty() ? 0 : all.unit.back() + 1;
  std::vector<double> sums = result.terms;
  out.loss = loss_of(result);
  sums.insert(sums.end(), result.sums.begin(), result.sums.end());
  out.metrics = metrics(sums);
  return out;
}

}  // namespace chassis
