// Asks for every parameter of every block, and joins blocks with the same answers to one type.
#include "host/compile/quant_pass.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

using Storages = std::vector<std::shared_ptr<const QuantizedStorage>>;  // by slot

std::string module_of_name(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

struct Readers {
  const Op* first = nullptr;
  uint32_t count = 0;
  bool as_first_parameter = true;  // all readers read it as their first parameter
};
Readers readers_of(const BlockType& block, SlotId slot) {
  Readers readers;
  int64_t num_chunks = 0, ways = 1;  // the chunks of a ring count as one reader
  for (const Op& op : block.ops) {
    const auto at = std::find(op.params.begin(), op.params.end(), slot);
    if (at == op.params.end()) continue;
    if (readers.first == nullptr) readers.first = &op;
    readers.as_first_parameter &= at == op.params.begin();
    if (op.attr(kNumChunks) == nullptr)
      ++readers.count;
    else
      ++num_chunks, ways = op.attr_int(kNumChunks, 1);
  }
  readers.count += static_cast<uint32_t>(num_chunks / ways);
  return readers;
}

std::map<std::string, uint32_t> count_ties(const Program& program) {
  std::map<std::string, uint32_t> ties;
  for (const BlockType& block : program.blocks)
    for (const ParameterSlot& slot : block.slots)
      if (!slot.tied_to.empty()) ++ties[slot.tied_to];
  return ties;
}

}  // namespace

void QuantPass::rewrite(Program& program, const Report& report) const {
  const std::map<std::string, uint32_t> ties = count_ties(program);
  const FileNames names = file_names_(program);
  std::map<std::pair<const chassis_quant_storage_t*, int64_t>, std::shared_ptr<const QuantizedStorage>> known;

  const auto ask = [&](const BlockType& block, SlotId id, const std::string& name) {
    const ParameterSlot& slot = block.slots[id];
    const Readers readers = readers_of(block, id);
    const auto in_files = names.of.find(name);
    const std::string file_name = in_files == names.of.end() ? name : in_files->second;
    const std::string module = module_of_name(file_name);
    const std::vector<int64_t> sizes = program.global_shape(slot);
    const auto tied = ties.find(name);
    chassis_quant_parameter_t raw{};
    raw.struct_size = sizeof raw;
    raw.role = slot.role;
    raw.name = str_of(file_name);
    raw.module = str_of(module);
    if (readers.first != nullptr) raw.op = str_of(readers.first->id.text());
    raw.sizes = sizes.data();
    raw.num_dims = sizes.size();
    raw.is_added = slot.added;
    raw.num_tied = tied == ties.end() ? 0 : tied->second;
    raw.num_readers = readers.count;
    std::shared_ptr<const QuantizedStorage> storage = plugin_.storage(raw);
    if (!storage) return storage;
    const auto refuse = [&](const std::string& why) {
      return plugin_error(plugin_.instance().label() + " stores '" + file_name + "' as " + storage->scheme() +
                          ", but " + why);
    };
    if (slot.added) throw refuse("an adapter added it, and trains it");
    if (raw.num_tied > 0) throw refuse("other parameters are tied to it");
    if (readers.count == 0 || !readers.as_first_parameter)
      throw refuse("an op does not read it as its first parameter");
    return known.emplace(std::pair(storage->described_by(), storage->num_slices()), storage).first->second;
  };

  const std::vector<BlockType> recorded = program.blocks;
  std::map<std::pair<uint32_t, std::vector<const QuantizedStorage*>>, uint32_t> types;
  std::map<uint32_t, int> num_variants;
  for (Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i) {
      const uint32_t type = chain.blocks[i];
      const BlockType& block = recorded[type];
      Storages storages(block.slots.size());
      std::vector<const QuantizedStorage*> key;
      for (SlotId id = 0; id < block.slots.size(); ++id) {
        if (block.slots[id].tied_to.empty()) storages[id] = ask(block, id, chain.parameter_name(i, block.slots[id]));
        key.push_back(storages[id].get());
      }
      const auto [found, is_new] = types.try_emplace({type, key}, type);
      if (is_new) {
        BlockType stored = block;
        if (const int variant = ++num_variants[type]; variant > 1) {
          stored.name += "-" + std::to_string(variant);
          found->second = static_cast<uint32_t>(program.blocks.size());
          program.blocks.emplace_back();
        }
        for (SlotId id = 0; id < stored.slots.size(); ++id) {
          if (!storages[id]) continue;
          ParameterSlot& slot = stored.slots[id];
          slot.storage = storages[id]->scheme();
          slot.components = storages[id];
          slot.frozen = true;
          report(stored.name + "." + slot.name, "stored as " + slot.storage + " in " +
                                                    std::to_string(storages[id]->components().size()) + " components");
        }
        program.blocks[found->second] = std::move(stored);
      }
      chain.blocks[i] = found->second;
    }
  plugin_.finish_model();
}

}  // namespace chassis
