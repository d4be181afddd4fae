// The scripts. Each has the same parts: tables made from the program, then a function that reads the command line.
// Rationale: keys and options of plugins are part of the script, since the program needs 0.2 s to start.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "host/command/completion/completion.hpp"

namespace chassis {
namespace {

using Kind = CompletionValue::Kind;

// 'text' for bash and zsh, where only the quote itself is special; in fish the backslash is too.
std::string shell_quoted(std::string_view text, bool is_fish = false) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += is_fish ? "\\'" : "'\\''";
    else if (c == '\\' && is_fish)
      out += "\\\\";
    else
      out += c;
  }
  return out + "'";
}

// One word: "none", "flag", "file", "file.toml", "folder", ":a,b", "keys" or "keys.quant.".
std::string word(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "none";
    case Kind::kFlag:
      return "flag";
    case Kind::kFile:
      return "file" + value.suffix;
    case Kind::kFolder:
      return "folder";
    case Kind::kChoices:
      return ":" + fmt::format("{}", fmt::join(value.choices, ","));
    case Kind::kKeys:
      break;
  }
  return "keys" + (value.prefix.empty() ? "" : "." + value.prefix);
}

std::string words_of_keys(const Completion& completion) {
  std::string out;
  for (const CompletionKey& key : completion.keys) out += (out.empty() ? "" : " ") + key.name + "=";
  return out;
}

// The branches of a case over commands, alike in bash and zsh: parts, options ("--html=file"), places, repeats.
std::string commands_of(const Completion& completion) {
  std::string out;
  for (const CompletionCommand& command : completion.commands) {
    std::string options, places;
    for (const CompletionOption& option : command.options)
      options += (options.empty() ? "" : " ") + option.name + "=" + word(option.value);
    for (const CompletionValue& place : command.places) places += (places.empty() ? "" : " ") + word(place);
    out += fmt::format("    {}) parts={} options={} places={} repeats={} ;;\n", shell_quoted(command.path),
                       shell_quoted(fmt::format("{}", fmt::join(command.parts, " "))), shell_quoted(options),
                       shell_quoted(places), command.repeats_last ? 1 : 0);
  }
  return out;
}

// The branches of a case over keys whose values are known.
std::string values_of(const Completion& completion) {
  std::string out;
  for (const CompletionKey& key : completion.keys)
    if (key.value.kind == Kind::kFile || !key.value.choices.empty())
      out += fmt::format("    {}) kind={} ;;\n", key.name, shell_quoted(word(key.value)));
  return out;
}

constexpr std::string_view kBash = R"(
# Sets parts, options, places and repeats of a command.
_chassis_command() {
  parts= options= places= repeats=0
  case $1 in
@COMMANDS@  esac
}

_chassis_keys='@KEYS@'

# Sets the kind of the values of a key.
_chassis_key() {
  kind=none
  case $1 in
@VALUES@  esac
}

# Keys up to their next dot, or values of the key in $current. Items of arrays are numbered.
_chassis_complete_key() {
  local current=$1 prefix=$2 number='' general=$1 key rest candidate kind
  if [[ $current =~ ^([a-z_]+(\.[a-z_]+)*)\.([0-9]+)(\..*)?$ ]]; then
    number=${BASH_REMATCH[3]}
    general=${BASH_REMATCH[1]}.0${BASH_REMATCH[4]}
  fi
  if [[ $current == *=* ]]; then
    [[ $general =~ ^([^=]*\.)[0-9]+(\.[^=]*)= ]] && general=${BASH_REMATCH[1]}0${BASH_REMATCH[2]}=
    _chassis_key "${general%%=*}"
    _chassis_complete_value "$kind" "${current#*=}"
    return
  fi
  local -A seen=()
  for key in $_chassis_keys; do
    [[ $key == "$prefix"* && $key == "$general"* ]] || continue
    rest=${key#"$general"}
    candidate=$general$rest
    [[ $rest == *.* ]] && candidate=$general${rest%%.*}.
    [[ -n $number ]] && candidate=${candidate/.0/.$number}
    [[ -n ${seen[$candidate]} ]] && continue
    seen[$candidate]=1
    COMPREPLY+=("$candidate")
  done
  compopt -o nospace 2>/dev/null
}

_chassis_complete_value() {
  local kind=$1 current=$2 line
  case $kind in
    :*) COMPREPLY=($(compgen -W "${kind//[:,]/ }" -- "$current")) ;;
    keys) _chassis_complete_key "$current" '' ;;
    keys.*) _chassis_complete_key "$current" "${kind#keys.}" ;;
    folder)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    file)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    file.*)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$current"; compgen -f -X "!*${kind#file}" -- "$current") ;;
  esac
}

_chassis() {
  local IFS=$' \t\n' parts options places repeats
  local -a words=()
  local i token glue=0
  # Words whole: bash splits them at = and :.
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    token=${COMP_WORDS[i]}
    if ((i > 1 && ${#words[@]} > 1)) && { ((glue)) || [[ $token == [=:]* ]]; }; then
      words[${#words[@]} - 1]+=$token
    else
      words+=("$token")
    fi
    glue=0
    [[ $token == [=:] ]] && glue=1
  done
  local command='' place=0 expected='' current=${words[${#words[@]} - 1]} word option kind
  COMPREPLY=()
  _chassis_command ''
  for ((i = 1; i < ${#words[@]} - 1; ++i)); do
    word=${words[i]}
    if [[ -n $expected ]]; then
      expected=''
    elif [[ $word == --*=* ]]; then
      :
    elif [[ $word == -* ]]; then
      for option in $options; do
        [[ ${option%%=*} == "$word" && ${option#*=} != flag ]] && expected=${option#*=}
      done
    elif [[ " $parts " == *" $word "* ]]; then
      command=${command:+$command }$word
      _chassis_command "$command"
    elif [[ $places != *keys* || $word != *=* ]]; then
      place=$((place + 1))
    fi
  done
  if [[ -n $expected ]]; then
    _chassis_complete_value "$expected" "$current"
  elif [[ $current == --*=* ]]; then
    for option in $options; do
      [[ ${option%%=*} == "${current%%=*}" ]] && _chassis_complete_value "${option#*=}" "${current#*=}"
    done
  elif [[ $current == -* ]]; then
    local names=''
    for option in $options; do names+=" ${option%%=*}"; done
    COMPREPLY=($(compgen -W "$names" -- "$current"))
  elif [[ -n $parts ]]; then
    COMPREPLY=($(compgen -W "$parts" -- "$current"))
  else
    local -a kinds=($places)
    ((place >= ${#kinds[@]} && repeats && ${#kinds[@]} > 0)) && place=$((${#kinds[@]} - 1))
    [[ $current == *=* && $places == *keys* ]] && place=$((${#kinds[@]} - 1))
    _chassis_complete_value "${kinds[place]:-none}" "$current"
  fi
}
complete -F _chassis chassis
)";

constexpr std::string_view kZsh = R"(
# Sets parts, options, places and repeats of a command.
_chassis_command() {
  parts= options= places= repeats=0
  case $1 in
@COMMANDS@  esac
}

typeset -g _chassis_keys='@KEYS@'

typeset -gA _chassis_docs=(
@DOCS@)

# Sets the kind of the values of a key.
_chassis_key() {
  kind=none
  case $1 in
@VALUES@  esac
}

# Keys up to their next dot, or values of a key. Items of arrays are numbered.
_chassis_complete_key() {
  local current=$PREFIX prefix=$1 number='' general=$PREFIX key rest candidate kind
  local -a match mbegin mend candidates
  if [[ $current =~ '^([a-z_]+(\.[a-z_]+)*)\.([0-9]+)(\..*)?$' ]]; then
    number=$match[3]
    general=$match[1].0$match[4]
  fi
  if [[ $current == *=* ]]; then
    [[ $current =~ '^([^=]*\.)[0-9]+(\.[^=]*)=' ]] && general=$match[1]0$match[2]=
    _chassis_key "${general%%=*}"
    compset -P '*='
    _chassis_complete_value $kind
    return
  fi
  for key in ${=_chassis_keys}; do
    [[ $key == $prefix* && $key == ${general}* ]] || continue
    rest=${key#$general}
    candidate=$general$rest
    [[ $rest == *.* ]] && candidate=$general${rest%%.*}.
    [[ -n $number ]] && candidate=${candidate/.0/.$number}
    candidates+=($candidate)
  done
  compadd -U -S '' -- ${(u)candidates}
}

_chassis_complete_value() {
  local kind=$1
  case $kind in
    :*) compadd -- ${(s:,:)${kind#:}} ;;
    keys) _chassis_complete_key '' ;;
    keys.*) _chassis_complete_key ${kind#keys.} ;;
    folder) _files -/ ;;
    file) _files ;;
    file.*) _files -g "*${kind#file}" ;;
  esac
}

_chassis() {
  local parts options places repeats command='' place=0 expected='' word option i
  local -a names
  _chassis_command ''
  for ((i = 2; i < CURRENT; ++i)); do
    word=$words[i]
    if [[ -n $expected ]]; then
      expected=''
    elif [[ $word == --*=* ]]; then
      :
    elif [[ $word == -* ]]; then
      for option in ${=options}; do
        [[ ${option%%=*} == $word && ${option#*=} != flag ]] && expected=${option#*=}
      done
    elif [[ " $parts " == *" $word "* ]]; then
      command=${command:+$command }$word
      _chassis_command $command
    elif [[ $places != *keys* || $word != *=* ]]; then
      place=$((place + 1))
    fi
  done
  if [[ -n $expected ]]; then
    _chassis_complete_value $expected
  elif [[ $PREFIX == --*=* ]]; then
    for option in ${=options}; do
      [[ ${option%%=*} == ${PREFIX%%=*} ]] || continue
      compset -P '*='
      _chassis_complete_value ${option#*=}
      return
    done
  elif [[ $PREFIX == -* ]]; then
    for option in ${=options}; do
      names+=("${option%%=*}:$_chassis_docs[${command:+$command }${option%%=*}]")
    done
    _describe -o option names
  elif [[ -n $parts ]]; then
    for word in ${=parts}; do names+=("$word:$_chassis_docs[${command:+$command }$word]"); done
    _describe command names
  else
    local -a kinds=(${=places})
    ((place >= $#kinds && repeats && $#kinds > 0)) && place=$(($#kinds - 1))
    [[ $PREFIX == *=* && $places == *keys* ]] && place=$(($#kinds - 1))
    _chassis_complete_value ${kinds[place + 1]:-none}
  fi
}

if [[ $funcstack[1] == _chassis ]]; then
  _chassis "$@"
else
  compdef _chassis chassis
fi
)";

constexpr std::string_view kFish = R"fish(
set -g __chassis_keys @KEYS@

# Commands and their options with a value; "ckpt merge --out".
set -g __chassis_commands @COMMANDS@
set -g __chassis_valued @VALUED@

# Prints the command of the line, and the number of its arguments so far; those with = are keys.
function __chassis_state
    set -l tokens (commandline -opc)
    set -l command ''
    set -l place 0
    set -l expected 0
    for word in $tokens[2..-1]
        set -l longer (string trim -- "$command $word")
        if test $expected = 1
            set expected 0
        else if string match -q -- '-*' $word
            contains -- (string trim -- "$command $word") $__chassis_valued; and set expected 1
        else if contains -- $longer $__chassis_commands
            set command $longer
        else if not string match -q -- '*=*' $word
            set place (math $place + 1)
        end
    end
    echo $command
    echo $place
end

# Whether the line is at a command: __chassis_at 'ckpt merge'. With a number: at this argument of it; "2+": or later.
function __chassis_at
    set -l state (__chassis_state)
    test "$state[1]" = "$argv[1]"; or return 1
    set -q argv[2]; or return 0
    string match -q -- '*+' $argv[2]; and test $state[2] -ge (string trim -c + -- $argv[2]); and return 0
    test $state[2] = $argv[2]
end

# Keys up to their next dot, or KEY=VALUE for each value. Items of arrays are numbered.
function __chassis_complete_key
    set -l prefix $argv[1]
    set -l current (commandline -ct)
    set -l number (string match -r -g -- '^[a-z_.]+\.([0-9]+)(?:\.|=|$)' $current)
    set -l general $current
    set -q number[1]; and set general (string replace -r -- '^([a-z_.]+\.)[0-9]+' '${1}0' $current)
    if string match -q -- '*=*' $current
        set -l written (string split -m 1 -- = $current)[1]
        for value in (__chassis_key_values (string split -m 1 -- = $general)[1])
            echo $written=$value
        end
        return
    end
    for key in $__chassis_keys
        string match -q -- "$prefix*" $key; and string match -q -- "$general*" $key; or continue
        set -l rest (string sub -s (math (string length -- "$general") + 1) -- $key)
        set -l candidate $key
        string match -q -- '*.*' $rest; and set candidate $general(string split -m 1 -- . $rest)[1].
        set -q number[1]; and set candidate (string replace -- .0 .$number[1] $candidate)
        echo $candidate
    end | sort -u
end

# Folders, and files of a suffix.
function __chassis_files
    for path in (__fish_complete_path (commandline -ct) | string replace -r '\t.*' '')
        string match -q -r -- "(/|"(string escape --style=regex -- $argv[1])")\$" $path; and echo $path
    end
end

function __chassis_key_values
    switch $argv[1]
@VALUES@    end
end

complete -c chassis -f
)fish";

std::string filled(std::string_view text, std::initializer_list<std::pair<std::string_view, std::string>> parts) {
  std::string out(text.substr(1));
  for (const auto& [name, value] : parts)
    for (size_t at = 0; (at = out.find(name, at)) != std::string::npos; at += value.size())
      out.replace(at, name.size(), value);
  return out;
}

std::string first_line_of_doc(const std::string& doc) { return doc.substr(0, doc.find('\n')); }

// The options of `complete -c chassis -n CONDITION …` that give the values.
std::string fish_value(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::kNone:
    case Kind::kFlag:
      return "";
    case Kind::kFile:
      return value.suffix.empty() ? "-F" : "-a '(__chassis_files " + value.suffix + ")'";
    case Kind::kFolder:
      return "-a '(__fish_complete_directories (commandline -ct))'";
    case Kind::kChoices:
      return "-a " + shell_quoted(fmt::format("{}", fmt::join(value.choices, " ")), true);
    case Kind::kKeys:
      break;
  }
  return "-a '(__chassis_complete_key \"" + value.prefix + "\")'";
}

std::string fish_command(const Completion& completion, const CompletionCommand& command) {
  std::string out;
  const std::string at = "__chassis_at " + shell_quoted(command.path, true);
  const std::string begin = "complete -c chassis -n " + shell_quoted(at, true);
  for (const std::string& part : command.parts) {
    const std::string path = command.path.empty() ? part : command.path + " " + part;
    const std::string doc = first_line_of_doc(completion.command(path).doc);
    out += fmt::format("{} -a {} -d {}\n", begin, part, shell_quoted(doc, true));
  }
  for (const CompletionOption& option : command.options) {
    out +=
        fmt::format("{} -l {} -d {}", begin, option.name.substr(2), shell_quoted(first_line_of_doc(option.doc), true));
    if (option.value.kind == Kind::kFile)
      out += " -r " + fish_value(option.value);
    else if (option.value.kind != Kind::kFlag)
      out += " -x " + fish_value(option.value);
    out += '\n';
  }
  for (size_t i = 0; i < command.places.size(); ++i) {
    const CompletionValue& place = command.places[i];
    if (fish_value(place).empty()) continue;
    const bool is_open = command.repeats_last && i + 1 == command.places.size();
    const std::string condition = fmt::format("{} {}{}", at, i, is_open ? "+" : "");
    out += fmt::format("complete -c chassis -n {} {}{}\n", shell_quoted(condition, true),
                       place.kind == Kind::kKeys ? "-k " : "", fish_value(place));
  }
  return out;
}

std::string heading(std::string_view shell, std::string_view use) {
  return fmt::format("# Completion of chassis in {}, made by `chassis completion {}`.\n# {}\n\n", shell, shell, use);
}

}  // namespace

std::string bash_script(const Completion& completion) {
  return heading("bash", "In ~/.bashrc: source <(chassis completion bash)") +
         filled(kBash, {{"@COMMANDS@", commands_of(completion)},
                        {"@KEYS@", words_of_keys(completion)},
                        {"@VALUES@", values_of(completion)}});
}

std::string zsh_script(const Completion& completion) {
  std::string docs;
  for (const CompletionCommand& command : completion.commands) {
    const std::string prefix = command.path.empty() ? "" : command.path + " ";
    if (!command.path.empty()) docs += fmt::format("  {} {}\n", shell_quoted(command.path), shell_quoted(command.doc));
    for (const CompletionOption& option : command.options)
      docs += fmt::format("  {} {}\n", shell_quoted(prefix + option.name), shell_quoted(first_line_of_doc(option.doc)));
  }
  return "#compdef chassis\n" +
         heading("zsh", "As _chassis in a folder of $fpath; or, after compinit: source <(chassis completion zsh)") +
         filled(kZsh, {{"@COMMANDS@", commands_of(completion)},
                       {"@KEYS@", words_of_keys(completion)},
                       {"@DOCS@", docs},
                       {"@VALUES@", values_of(completion)}});
}

std::string fish_script(const Completion& completion) {
  std::string commands, valued, values, lines;
  for (const CompletionCommand& command : completion.commands) {
    if (!command.path.empty()) commands += " " + shell_quoted(command.path, true);
    for (const CompletionOption& option : command.options)
      if (option.value.kind != Kind::kFlag)
        valued += " " + shell_quoted(command.path + (command.path.empty() ? "" : " ") + option.name, true);
    lines += fish_command(completion, command);
  }
  for (const CompletionKey& key : completion.keys) {
    if (!key.value.choices.empty())
      values +=
          fmt::format("        case {}\n            printf '%s\\n' {}\n", key.name, fmt::join(key.value.choices, " "));
    else if (key.value.kind == Kind::kFile)
      values += fmt::format(
          "        case {}\n            __fish_complete_path (string replace -r '^[^=]*=' '' -- "
          "(commandline -ct)) | string replace -r '\\t.*' ''\n",
          key.name);
  }
  return heading("fish", "chassis completion fish > ~/.config/fish/completions/chassis.fish") +
         filled(kFish, {{"@COMMANDS@", commands},
                        {"@VALUED@", valued},
                        {"@KEYS@", words_of_keys(completion)},
                        {"@VALUES@", values}}) +
         lines;
}

}  // namespace chassis
