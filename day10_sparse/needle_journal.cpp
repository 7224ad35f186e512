#include "day10_sparse/needle_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "common/loader/model_files.h"

namespace kvlab {
namespace {

constexpr char kKind[] = "day10_needle journal 1";

/// A million units.
constexpr std::uint64_t kMaxBytes = 1'000'000'000;

std::string UnitLine(const GridUnit& unit) {
  nlohmann::ordered_json json;
  json["context"] = unit.id.context;
  json["depth"] = unit.id.depth;
  json["seed"] = unit.id.seed;
  json["needle"] = unit.needle;
  json["exact"] = unit.exact;
  // A digit for each arm and k.
  std::string found, same;
  for (const GridUnit::Answer& answer : unit.sparse) {
    found += answer.found ? '1' : '0';
    same += answer.same ? '1' : '0';
  }
  json["found"] = found;
  json["same"] = same;
  return json.dump(-1, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

/// "SIZE bytes, FNV-1a HASH" of a file. Only the first and the last 1 MB are
/// hashed: the weights of a real model are many GB, and training leaves no part
/// of them as it was.
std::string Fingerprint(const std::filesystem::path& path) {
  constexpr std::uint64_t kPart = 1'000'000;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff end = file.tellg();
  if (!file || end < 0) Fail(PathText(path), ": cannot be read");
  const auto size = static_cast<std::uint64_t>(end);
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t from, std::uint64_t bytes) {
    std::string part(bytes, '\0');
    file.seekg(static_cast<std::streamoff>(from));
    file.read(part.data(), static_cast<std::streamsize>(bytes));
    if (!file) Fail(PathText(path), ": cannot be read");
    for (const char c : part) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
  };
  const std::uint64_t first = std::min(size, kPart);
  add(0, first);
  const std::uint64_t last = std::min(size - first, kPart);
  add(size - last, last);
  return StrCat(size, " bytes, FNV-1a ", std::hex, hash);
}

/// How every complaint about a line ends.
constexpr char kWhatToDo[] = "; delete the file or give another --journal";

/// Names the first setting that differs.
std::string Difference(const Json& there, const Json& here) {
  for (const auto& [key, value] : here.items()) {
    const auto it = there.find(key);
    if (it == there.end() || *it != value) {
      return StrCat(key, " is ", it == there.end() ? "not told" : JsonText(*it),
                    " there and ", JsonText(value), " here");
    }
  }
  return "it has settings that this program does not know";
}

bool SameResult(const GridUnit& a, const GridUnit& b) {
  return UnitLine(a) == UnitLine(b);
}

}  // namespace

nlohmann::ordered_json Fingerprints(const Model& model) {
  nlohmann::ordered_json json;
  const auto add = [&](const std::filesystem::path& path) {
    json[StrCat("file ", Printable(path.filename().string()))] =
        Fingerprint(path);
  };
  for (const SafetensorsFile& file : model.files->files()) add(file.path());
  // All else that a prompt or an answer depends on, where it is there.
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.json", "chat_template.jinja"}) {
    if (HasEntry(model.directory / name)) add(model.directory / name);
  }
  add(FactBook::LoadShipped().path());
  return json;
}

Journal::Journal(const std::filesystem::path& path,
                 const GridSettings& settings,
                 const nlohmann::ordered_json& header)
    : path_(path), settings_(settings) {
  const std::string where = StrCat("--journal ", PathText(path));
  nlohmann::ordered_json first;
  first["kind"] = kKind;
  first["settings"] = header;
  // Before the file is made: what fails here must not leave an empty one.
  const std::string line = first.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
             0666);
  if (fd_ < 0) FailUsage(where, ": ", std::strerror(errno));
  try {
    struct stat info = {};
    if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      FailUsage(where, ": expected a regular file, which can be gone on with");
    }
    // A file system without locks is no reason to refuse.
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      FailUsage(where, ": another run is writing it; wait for its end");
    }
    Read(line);
  } catch (...) {
    close(fd_);
    throw;
  }
}

Journal::~Journal() { close(fd_); }

void Journal::Read(const std::string& header) {
  const std::string text = ReadSmallFile(path_, kMaxBytes);
  const std::string where = StrCat("--journal ", PathText(path_));
  const std::size_t whole = text.rfind('\n') + 1;  // 0 without one
  if (whole == 0) {
    if (!header.starts_with(text)) {
      FailUsage(where, ": it is no journal; give a file that is new or one");
    }
  } else {
    const std::string line = text.substr(0, text.find('\n'));
    const Json first =
        Json::parse(line, nullptr, false);  // discarded if it is no JSON
    if (!first.is_object() || first.value("kind", Json()) != kKind ||
        !first.value("settings", Json()).is_object()) {
      FailUsage(where, ": it is no journal; give a file that is new or one");
    }
    const Json expected = Json::parse(header);
    if (first != expected) {
      FailUsage(where, ": it belongs to other settings: ",
                Difference(first["settings"], expected["settings"]),
                "; use the same options or another file");
    }
  }

  std::optional<FactBook> book;  // that the needles are drawn from
  if (!settings_.own_needle) book = FactBook::LoadShipped();
  std::map<UnitId, std::pair<std::size_t, std::size_t>> known;  // line, unit
  std::size_t number = 0;
  for (std::size_t at = 0; at < whole;) {
    const std::size_t end = text.find('\n', at);
    if (++number > 1) {
      const std::string line_where = StrCat(where, ", line ", number);
      GridUnit unit = ReadUnit(std::string_view(text).substr(at, end - at),
                               line_where, book);
      const auto [place, added] =
          known.insert({unit.id, {number, units_.size()}});
      if (added) {
        units_.push_back(std::move(unit));
      } else if (!SameResult(unit, units_[place->second.second])) {
        Fail(line_where, ": the prompt of line ", place->second.first,
             " again, with another result", kWhatToDo);
      }
    }
    at = end + 1;
  }
  // What a crash cut off must not become the beginning of the next line.
  if (whole < text.size() && ftruncate(fd_, static_cast<off_t>(whole)) != 0) {
    Fail(where, ": ", std::strerror(errno));
  }
  size_ = whole;
  if (whole == 0) WriteLine(header);
}

GridUnit Journal::ReadUnit(std::string_view line, const std::string& where,
                           const std::optional<FactBook>& book) const try {
  const Json json = ParseJson(line, where);
  const JsonFields fields(json, where);
  const auto flags = [&](const char* field) {
    const std::string text = fields.String(field);
    if (text.size() != settings_.arms.size() * settings_.ks.size() ||
        text.find_first_not_of("01") != std::string::npos) {
      fields.Refuse(field, "a 0 or 1 for each arm and k", Printable(text));
    }
    return text;
  };
  // A value of this type that the grid has, else it is no line of this grid.
  const auto need = [&](const char* field, const char* expected, auto good) {
    const Json* value = fields.Find(field);
    if (value == nullptr || !good(*value)) {
      fields.Refuse(field, expected, value ? JsonText(*value) : "none");
    }
    return *value;
  };
  GridUnit unit;
  unit.id.context =
      need("context", "a context of the grid", [&](const Json& value) {
        return value.is_number_unsigned() &&
               std::ranges::any_of(settings_.contexts,
                                   [&](int c) { return value == c; });
      }).get<int>();
  unit.id.depth = need("depth", "a depth of the grid", [&](const Json& value) {
                    return value.is_number() &&
                           std::ranges::any_of(settings_.depths, [&](double d) {
                             return value == d;
                           });
                  }).get<double>();
  const std::uint64_t first_seed = settings_.prompt.needle.seed;
  unit.id.seed = need("seed", "a seed of the grid", [&](const Json& value) {
                   return value.is_number_unsigned() &&
                          value.get<std::uint64_t>() >= first_seed &&
                          value.get<std::uint64_t>() - first_seed <
                              static_cast<std::uint64_t>(settings_.seeds);
                 }).get<std::uint64_t>();
  unit.needle = fields.String("needle");
  if (book) {
    const std::string drawn = DrawNeedle(*book, unit.id.seed);
    if (unit.needle != drawn) {
      fields.Refuse("needle", StrCat("that of its seed, \"", drawn, '"'),
                    StrCat('"', Printable(unit.needle), '"'));
    }
  }
  unit.exact = need("exact", "true or false", [](const Json& v) {
                 return v.is_boolean();
               }).get<bool>();
  const std::string found = flags("found");
  const std::string same = flags("same");
  for (std::size_t i = 0; i < found.size(); ++i) {
    unit.sparse.push_back({found[i] == '1', same[i] == '1'});
  }
  return unit;
} catch (const Error& error) {
  throw Error(StrCat(error.what(), kWhatToDo), error.exit_code());
}

std::string Journal::Damage() const {
  struct stat open_file = {}, named = {};
  if (fstat(fd_, &open_file) != 0) return std::strerror(errno);
  if (open_file.st_nlink == 0) return "it was deleted";
  if (stat(path_.c_str(), &named) != 0) return "it was deleted or moved";
  if (named.st_dev != open_file.st_dev || named.st_ino != open_file.st_ino) {
    return "it was replaced by another file";
  }
  if (static_cast<std::uint64_t>(open_file.st_size) != size_) {
    return StrCat("it was changed: expected ", size_, " bytes, found ",
                  open_file.st_size);
  }
  return "";
}

void Journal::RequireIntact() const {
  const std::string damage = Damage();
  if (damage.empty()) return;
  Fail("--journal ", PathText(path_), ": ", damage,
       " while the grid ran; what was done so far is lost: give another "
       "--journal and leave it alone until the end");
}

void Journal::Append(const GridUnit& unit) {
  RequireIntact();
  WriteLine(UnitLine(unit));
}

void Journal::WriteLine(const std::string& line) {
  const std::string text = line + '\n';
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Fail("--journal ", PathText(path_), ": ", std::strerror(errno));
    done += static_cast<std::size_t>(n);
    size_ += static_cast<std::uint64_t>(n);
  }
}

}  // namespace kvlab
