// Reads regions of both directories, lets the adapter change them, and casts them into the files.
#include "host/save/merge.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/save/base_reference.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/quantize.hpp"
#include "host/save/quantized_weights.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

constexpr int64_t kChunkElements = 1 << 20;  // elements changed at a time

// A directory, and the places of the session's parameters in it.
struct Opened {
  std::unique_ptr<CheckpointReader> reader;
  std::optional<ModelDirectory> directory;
  std::optional<CheckpointReader::Values> values;
  std::optional<QuantizedWeights> quantized;

  Opened(Session& session, const std::string& path, bool is_adapter) {
    reader = is_adapter ? open_adapter(session, path) : open_directory(session, path);
    compare_with_manifest(path, reader->manifest());
    directory.emplace(session, *reader, is_adapter);
    directory->compare_tied_copies(*reader);
    values.emplace(*reader);
    if (session.quant() != nullptr && !is_adapter) quantized.emplace(session, *reader, *directory);
  }
  bool has_components(const Parameter& p) const { return quantized && quantized->is_stored(p); }
  void check(const Session& session) {
    std::vector<LoadTensor> wanted;
    for (const auto& p : session.parameters().all()) {
      if (!directory->has(*p)) continue;
      if (has_components(*p)) {
        quantized->add_wanted(*p, wanted);
      } else {
        wanted.push_back(directory->load_tensor(p->descriptor));
        wanted.back().descriptor.components.clear();
      }
    }
    LoadOptions options;
    options.skip = [&, ignored = directory->skip()](const std::string& name) {
      return ignored(name) || (quantized && quantized->is_wanted(name));
    };
    reader->check(wanted, options);
  }
  void read(const Parameter& p, const Descriptor& descriptor, const Box& chunk, std::span<float> out, bool hashed) {
    if (!has_components(p)) return values->read(directory->parts(descriptor), chunk, out, hashed);
    const auto rows = row_major_view(descriptor.global_shape, chunk);
    for_each_run({chunk, rows, {0, row_major_strides(chunk.sizes())}}, [&](int64_t from, int64_t to, int64_t length) {
      quantized->decode(p, from, out.subspan(static_cast<size_t>(to), static_cast<size_t>(length)));
    });
  }
  std::vector<PartRead> hashed() const {
    std::vector<PartRead> all = values->hashed();
    if (quantized) std::ranges::copy(quantized->hashed(), std::back_inserter(all));
    return all;
  }
};

Error numeric_error(const std::string& what) { return Error(ExitCode::kNumeric, what); }

template <class Visit>
void for_each_chunk(const Box& box, const Visit& visit) {
  if (numel(box) <= kChunkElements) return visit(box);
  int dim = 0;
  while (box.end[dim] - box.begin[dim] == 1) ++dim;
  Box first = box, second = box;
  first.end[dim] = second.begin[dim] = box.begin[dim] + (box.end[dim] - box.begin[dim]) / 2;
  for_each_chunk(first, visit);
  for_each_chunk(second, visit);
}

class Merge {
 public:
  Merge(Session& session, const std::string& base, const std::string& trained)
      : session_(session), names_(session), trained_(session, trained, is_adapter_directory(trained)) {
    const Content content = trained_.directory->content();
    if (content == Content::kModel)
      throw storage_error("'" + trained + "' holds a whole model and no adapter: there is nothing to merge");
    if (const CheckpointManifest* manifest = trained_.reader->manifest())
      reference_ = base_reference(manifest->about, trained);
    trained_.check(session);
    if (content != Content::kAll) {
      if (base.empty())
        throw storage_error("'" + trained + "' has no frozen weights, and the model beneath it is not known");
      base_.emplace(session, base, false);
      if (base_->directory->content() != Content::kModel)
        throw storage_error("'" + base + "' is not a model: it holds what was trained on one");
      base_->check(session);
      if (!reference_) compare_base_name(trained, base, "the model beneath it");
    }
    if (reference_ && !reference_->quant.empty()) {
      if (has_components())
        compare_quantization(session, trained, *reference_);
      else
        counted_warning("an adapter of quantized weights is merged into others",
                        "'" + trained + "' was trained on weights that " + printable(reference_->quant) +
                            " stores in fewer bits, and is merged into those in " + model().reader->path());
    }
    read_added();
  }

  // Fills the room for a part of a plan.
  void operator()(const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
    const Descriptor& descriptor = plan.tensors[part.tensor].descriptor;
    const Parameter& p = *session_.parameters().find(descriptor.fqn);
    Opened& from = base_ && !trained_.directory->has(p) ? *base_ : trained_;
    const Dtype dtype = plan.boxes[part.box].dtype;
    for_each_chunk(part.region, [&](const Box& chunk) {
      const int64_t count = numel(chunk);
      values_.resize(static_cast<size_t>(count));
      from.read(p, descriptor, chunk, values_, &from != &trained_);
      apply(p, chunk, values_);
      check_values(p, dtype, values_);
      const Tensor flat = Tensor::borrow(values_.data(), std::vector<int64_t>{count}, Dtype::f32);
      const Piece piece{chunk, {0, row_major_strides(chunk.sizes())}, true};
      for (const Copy& copy : copies({piece}, {part.place(plan)})) cast_into(room, flat, copy, dtype);
    });
  }

  // The components of the base model, which are then changed by the adapter and quantized again.
  QuantizedWeights& quantized() {
    if (!has_components())
      throw storage_error("'" + model().reader->path() + "' holds no quantized weights, which could be kept")
          .hint("merge, then `chassis ckpt quantize DIR --out DIR`");
    model().quantized->change_values([this](const Parameter& p, const Box& rows, std::span<float> values) {
      apply(p, rows, values);
      check_values(p, Dtype::f32, values);
    });
    counted_warning(
        "merged weights are quantized again",
        "'" + model().reader->path() + "' is quantized, and so is what is merged into it: it loses precision");
    return *model().quantized;
  }

  // Throws if the base that was read is not the one that the checkpoint refers to. For an adapter, only counts a
  // warning: it may be meant for another base, such as the model that was quantized to train it.
  void compare_base() const {
    if (!reference_ || !base_) return;
    World alone;
    const std::string hash = base_->reader->content_hash(base_->hashed(), alone);
    if (hash == reference_->hash) return;
    const std::string what = BaseReference{base_->reader->path(), hash}.text() + " is not the model on which '" +
                             trained_.reader->path() + "' was trained, " + reference_->text();
    if (trained_.directory->content() != Content::kAdapter)
      throw storage_error(what).hint("give that model with --base DIR");
    counted_warning("the adapter was made for another model", what);
  }

 private:
  // The directory of the base weights.
  Opened& model() { return base_ ? *base_ : trained_; }
  bool has_components() {
    return std::ranges::any_of(session_.parameters().all(), [&](const auto& p) { return model().has_components(*p); });
  }
  void read_added() {
    for (const auto& [name, module] : names_.modules()) {
      if (module.is_tied) throw storage_error(tied_branch_text(name));
      for (const Parameter* p : module.added) {
        const Descriptor& d = p->descriptor;
        std::vector<float>& values = added_[p->name];
        values.resize(static_cast<size_t>(numel(d.global_shape)));
        trained_.values->read(trained_.directory->parts(d), Box::whole(d.global_shape), values);
        if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
          throw numeric_error("'" + p->name + "' in " + trained_.reader->path() + " has a value that is not finite");
      }
    }
  }

  void apply(const Parameter& p, const Box& chunk, std::span<float> values) {
    const AdapterNames::Module* const module = names_.module_of(p);
    if (module == nullptr) return;
    const int ndim = chunk.ndim();
    if (ndim < 1 || ndim > 2)
      throw plugin_error("'" + p.name + "' has " + std::to_string(ndim) + " dims; adapters merge into 1 or 2");
    std::vector<std::string> names;
    for (const Parameter* added : module->added) names.push_back(names_.name_in_module(*added));
    std::vector<chassis_adapter_tensor_t> tensors;
    std::vector<const chassis_adapter_tensor_t*> pointers;
    for (size_t i = 0; i < names.size(); ++i) {
      const Shape& shape = module->added[i]->descriptor.global_shape;
      tensors.push_back({sizeof(chassis_adapter_tensor_t),
                         static_cast<uint32_t>(shape.ndim()),
                         {names[i].data(), names[i].size()},
                         shape.begin(),
                         added_.at(module->added[i]->name).data()});
    }
    for (const auto& tensor : tensors) pointers.push_back(&tensor);
    const std::string parameter = names_.name_in_module(p);
    chassis_adapter_merge_t merge{};
    merge.struct_size = sizeof merge;
    merge.num_tensors = static_cast<uint32_t>(tensors.size());
    merge.module = {module->in_files.data(), module->in_files.size()};
    merge.parameter = {parameter.data(), parameter.size()};
    merge.row_begin = chunk.begin[0];
    merge.num_rows = chunk.end[0] - chunk.begin[0];
    merge.column_begin = ndim == 2 ? chunk.begin[1] : 0;
    merge.num_columns = ndim == 2 ? chunk.end[1] - chunk.begin[1] : 1;
    merge.values = values.data();
    merge.tensors = pointers.data();
    session_.adapter()->plugin().merge(merge);
  }

  void check_values(const Parameter& p, Dtype dtype, std::span<const float> values) const {
    // Values of at least this size round to infinity.
    const float limit = dtype == Dtype::f16 ? 65520.0f : dtype == Dtype::bf16 ? 0x1.ffp127f : INFINITY;
    for (const float value : values) {
      if (!std::isfinite(value)) throw numeric_error("'" + p.name + "' merged has a value that is not finite");
      if (std::abs(value) >= limit)
        throw numeric_error("'" + p.name + "' merged has the value " + std::to_string(value) + ", which overflows " +
                            std::string(float_dtype_name(dtype)))
            .hint("merge into bf16 or fp32 instead");
    }
  }

  Session& session_;
  const AdapterNames names_;
  Opened trained_;
  std::optional<Opened> base_;  // absent if `trained_` has all parameters
  std::optional<BaseReference> reference_;
  std::map<std::string, std::vector<float>> added_;
  std::vector<float> values_;  // values of one chunk
};

// The directory of the base model of what was trained.
std::string base_of(const MergeRequest& request) {
  if (!request.base.empty()) return request.base;
  std::string named;
  const auto is_model = [](const std::string& path) {
    return !path.empty() && path_kind(path + "/config.json") != PathKind::kAbsent;
  };
  if (SourceDirectory directory(request.trained); directory.find_file(kManifestName) >= 0) {
    const CheckpointManifest manifest = CheckpointManifest::read(directory);
    const std::optional<BaseReference> base = base_reference(manifest.about, request.trained);
    if (base) named = base->path;
    if (!base && manifest.format != kAdapterFormat) return request.trained;  // it has all parameters
  }
  if (is_model(named)) return named;
  if (const std::string other = named_base(request.trained); !other.empty()) named = other;
  if (is_model(named)) return named;
  throw storage_error("'" + request.trained + "' is merged into the model beneath it, and " +
                      (named.empty() ? "names none" : "'" + named + "', which it names, is no model directory here"))
      .hint("give that model with --base DIR");
}

}  // namespace

SaveResult merge_weights(Session& session, const std::string& base, const std::string& trained, SaveRequest request,
                         const BucketPair& buckets, bool keep_quantized) {
  if (const RunAdapter* adapter = session.adapter(); adapter != nullptr && !adapter->plugin().can_merge())
    throw config_error("adapter '" + adapter->member() + "' cannot be merged");
  Merge merge(session, base, trained);
  QuantizedWeights* const quantized = keep_quantized ? &merge.quantized() : nullptr;
  const auto instance = slot_format(session, session.settings().exports);
  const FormatPlugin format(*instance);
  const SavePlan plan = plan_export(session, format, quantized);
  request.source = [&, literals = from_tensors(exported_tensors(session)),
                    components = quantized != nullptr ? quantized->source() : PartSource(), num_done = size_t{0}](
                       const SavePlan& whole, const SavePart& part, const ReserveBytes& room) mutable {
    const Descriptor& tensor = whole.tensors[part.tensor].descriptor;
    if (session.disk_mapping().literals().contains(tensor.fqn))
      literals(whole, part, room);
    else if (quantized != nullptr && quantized->has(tensor))
      components(whole, part, room);
    else
      merge(whole, part, room);
    if (++num_done == whole.parts.size()) merge.compare_base();  // before anything is published
  };
  return CheckpointWriter(format, buckets).save(plan, request);
}

SaveResult merge_checkpoint(const MergeRequest& request) {
  refuse_adapter_format(request.format);
  compare_with_manifest(request.trained);
  const std::string base = base_of(request);
  const bool has_adapter = path_kind(request.trained + "/" + kAdapterConfigName) != PathKind::kAbsent;
  std::vector<std::string> overrides = {"model.path=" + base, "model.init=random", "run.device=cpu",
                                        "export.dtype=" + request.dtype};
  if (has_adapter) {
    const std::string plugin = request.adapter.empty() ? adapter_plugin_of(request.trained) : request.adapter;
    overrides.insert(overrides.end(),
                     {"adapter.plugin=" + plugin, "adapter.path=" + request.trained, "export.merge=true"});
  }
  if (!request.format.empty()) overrides.push_back("export.plugin=" + request.format);
  const bool is_quantized = has_quantized_weights(base);
  if (is_quantized) overrides.push_back("quant.plugin=" + quant_plugin(request.quant, request.plugin_path));
  if (request.keep_quantized && !is_quantized)
    throw config_error("--keep-quantized: '" + base + "' is not quantized")
        .hint("merge, then `chassis ckpt quantize DIR --out DIR`");
  Session session(load_config_text("schema_version = 1\n", "ckpt merge", overrides, ConfigUse::kWeights),
                  {.plugin_path = request.plugin_path, .target = {.without_device = true}});
  const OutputDirectory place(request.directory, {request.trained, base}, false);
  SaveRequest save;
  save.parent = place.parent();
  save.name = place.name();
  save.mode = shared_file_mode(base) & shared_file_mode(request.trained);
  save.text_files = {{"config.json", export_config(session, request.keep_quantized)}};
  save.carried_files = files_to_copy(request.trained, {"config.json"});
  std::set<std::string> taken = {"config.json"};
  for (const CopiedFile& file : save.carried_files) taken.insert(file.name);
  for (CopiedFile& file : files_to_copy(base, taken)) save.carried_files.push_back(std::move(file));
  if (SourceDirectory directory(request.trained); directory.find_file(kManifestName) >= 0)
    save.step = CheckpointManifest::read(directory).step;
  ProgressBar bar("writing " + request.directory);
  save.progress = [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  SaveResult saved = merge_weights(session, base, request.trained, std::move(save), BucketPair(bucket_bytes(session)),
                                   request.keep_quantized);
  place.log_replaced();
  return saved;
}

}  // namespace chassis
