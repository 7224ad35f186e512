#include "day10_sparse/needle_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>

#include "common/base/error.h"
#include "common/loader/json.h"

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

}  // namespace

Journal::Journal(const std::filesystem::path& path,
                 const GridSettings& settings,
                 const nlohmann::ordered_json& header)
    : path_(path), settings_(settings) {
  const std::string where = StrCat("--journal ", PathText(path));
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
    nlohmann::ordered_json first;
    first["kind"] = kKind;
    first["settings"] = header;
    Read(first.dump());
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

  std::set<UnitId> known;
  const std::vector<UnitId> all = GridUnits(settings_);
  const std::set<UnitId> wanted(all.begin(), all.end());
  std::size_t number = 0;
  for (std::size_t at = 0; at < whole;) {
    const std::size_t end = text.find('\n', at);
    if (++number > 1) {
      GridUnit unit =
          ReadUnit(std::string_view(text).substr(at, end - at), number);
      if (wanted.contains(unit.id) && known.insert(unit.id).second) {
        units_.push_back(std::move(unit));
      }
    }
    at = end + 1;
  }
  // What a crash cut off must not become the beginning of the next line.
  if (whole < text.size() && ftruncate(fd_, static_cast<off_t>(whole)) != 0) {
    Fail(where, ": ", std::strerror(errno));
  }
  if (whole == 0) WriteLine(header);
}

GridUnit Journal::ReadUnit(std::string_view line, std::size_t number) const {
  const std::string where =
      StrCat("--journal ", PathText(path_), ", line ", number);
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
  const auto number_of = [&](const char* field) -> const Json& {
    const Json* value = fields.Find(field);
    if (value == nullptr || !value->is_number()) {
      fields.Refuse(field, "a number", value ? JsonText(*value) : "none");
    }
    return *value;
  };
  GridUnit unit;
  unit.id.context = fields.Int("context", 1, 1'000'000'000);
  unit.id.depth = number_of("depth").get<double>();
  unit.id.seed = number_of("seed").get<std::uint64_t>();
  unit.needle = fields.String("needle");
  unit.exact = fields.BoolOr("exact", false);
  const std::string found = flags("found");
  const std::string same = flags("same");
  for (std::size_t i = 0; i < found.size(); ++i) {
    unit.sparse.push_back({found[i] == '1', same[i] == '1'});
  }
  return unit;
}

void Journal::Append(const GridUnit& unit) { WriteLine(UnitLine(unit)); }

void Journal::WriteLine(const std::string& line) {
  const std::string text = line + '\n';
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Fail("--journal ", PathText(path_), ": ", std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace kvlab
