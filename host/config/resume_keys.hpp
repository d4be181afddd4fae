// The settings that a resumed run may change.
#pragma once

#include <map>
#include <string>

namespace chassis {

using SettingTexts = std::map<std::string, std::string>;  // JSON by dotted key; keys that are not set are absent

// True for a key that differs between the saved and the present settings if it does not change the results of training,
// or if users are meant to change it.
bool may_change_on_resume(const std::string& key, const SettingTexts& saved, const SettingTexts& now);

}  // namespace chassis
