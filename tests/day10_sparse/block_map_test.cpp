/// The block map as text and as a script for gnuplot, without a model.
#include "day10_sparse/block_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "common/base/error.h"

namespace kvlab {
namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// A row in which no two neighbouring stretches look alike.
MapRow Pattern(int blocks, int layer = 0, int head = 0) {
  MapRow row{.step = 0, .layer = layer, .head = head, .blocks = {}};
  for (int b = 0; b < blocks; ++b) {
    row.blocks += b % 7 == head ? 'P' : b % 11 == layer ? 'I' : '.';
  }
  return row;
}

/// What a map of one step says of its cells: the characters below each number
/// of the ruler, and those that the Ns stand above.
struct ReadBack {
  std::vector<std::string> rows;  ///< whole again
  std::vector<int> needle;
};

ReadBack Read(const std::string& text) {
  ReadBack read;
  std::size_t column = 0, row = 0;
  int first = 0;
  for (const std::string& line : Lines(text)) {
    if (line.starts_with("layer")) {
      column = line.find_first_of("0123456789");
      first = std::stoi(line.substr(column));
      EXPECT_EQ(first % 10, 0) << line;
      row = 0;
      // Every number stands above its block.
      for (std::size_t i = column; i < line.size(); i += 10) {
        EXPECT_EQ(std::stoi(line.substr(i)),
                  first + static_cast<int>(i - column));
      }
    } else if (column > 0 && line.starts_with("      ")) {
      for (std::size_t i = column; i < line.size(); ++i) {
        if (line[i] == 'N') {
          read.needle.push_back(first + static_cast<int>(i - column));
        }
      }
    } else if (column > 0 && !line.empty()) {
      if (row == read.rows.size()) read.rows.emplace_back();
      EXPECT_EQ(static_cast<int>(read.rows[row].size()), first) << line;
      read.rows[row++] += line.substr(column);
    }
  }
  return read;
}

TEST(BlockMapText, ShowsLegendNeedleAndRows) {
  const std::vector<MapRow> rows = {{0, 0, 0, "I.P.........R"},
                                    {0, 0, 1, "I.P.........R"},
                                    {0, 0, 2, "IP.x........R"},
                                    {0, 1, 2, "IP.x........R"}};
  MapLegend legend{
      .block_tokens = 16, .needle = TokenRange{31, 50}, .prompt_tokens = 2};
  legend.tokens = {"a", "b", " c\n"};
  EXPECT_EQ(
      BlockMapText(rows, legend, 80),
      "taken               I importance, P probe, R recency\n"
      "dropped             . lower_probe, x evicted_by_recency\n"
      "needle              N blocks 1-3 (tokens 31-50)\n"
      "\n"
      "step 0, query of token 2 \" c\\x0A\", over 13 blocks of 16 tokens\n"
      "layer  head  0         10\n"
      "              NNN\n"
      "0      0-1   I.P.........R\n"
      "0      2     IP.x........R\n"
      "1      2     IP.x........R\n");
}

TEST(BlockMapText, NoNeedleNoMarks) {
  const std::string text = BlockMapText({{0, 0, 0, "I"}}, {}, 80);
  EXPECT_FALSE(Has(text, "needle"));
  EXPECT_EQ(Lines(text).back(), "0      0     I");
  EXPECT_TRUE(Has(text, "step 0, query of token 0, over 1 block of 32 tokens"));
  // A needle in one block of the map, and in one token.
  const std::string one =
      BlockMapText({{0, 0, 0, "I"}}, {.needle = TokenRange{5, 5}}, 80);
  EXPECT_TRUE(Has(one, "N block 0 (token 5)\n")) << one;
}

TEST(BlockMapText, FoldsOnlyHeadsThatFollowOneAnother) {
  const std::vector<MapRow> rows = {{0, 0, 9, "I."},  {0, 0, 10, "I."},
                                    {0, 0, 11, "I."}, {0, 0, 13, "I."},
                                    {0, 1, 14, "I."}, {1, 1, 15, "I."}};
  const auto lines = Lines(BlockMapText(rows, {}, 80));
  const std::vector<std::string> map(lines.begin() + 4, lines.end());
  EXPECT_EQ(map, (std::vector<std::string>{
                     "layer  head  0", "0      9-11  I.", "0      13    I.",
                     "1      14    I.", "",
                     "step 1, query of token 1, over 2 blocks of 32 tokens",
                     "layer  head  0", "1      15    I."}))
      << BlockMapText(rows, {}, 80);
}

/// The default prompt in a terminal of 80 columns: no line is broken.
TEST(BlockMapText, SixtyFiveBlocksFitIntoEightyColumns) {
  const std::vector<MapRow> rows = {Pattern(65), Pattern(65, 1),
                                    Pattern(65, 2)};
  const std::string text =
      BlockMapText(rows, {.needle = TokenRange{1022, 1028}}, 80);
  const ReadBack read = Read(text);
  EXPECT_EQ(read.rows, (std::vector<std::string>{rows[0].blocks, rows[1].blocks,
                                                 rows[2].blocks}));
  EXPECT_EQ(read.needle, (std::vector<int>{31, 32}));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3 + 2 + 2 + 3);
}

/// Whatever the width: every block once, under its number, in lines that fit.
TEST(BlockMapText, WrapsLongRows) {
  for (const int blocks : {1, 9, 10, 11, 60, 65, 67, 68, 128, 500, 4096}) {
    const std::vector<MapRow> rows = {Pattern(blocks), Pattern(blocks, 0, 3),
                                      Pattern(blocks, 12, 4)};
    const int last = 32 * blocks - 1;
    for (const int columns : {1, 23, 24, 40, 79, 80, 81, 100, 132, 5000}) {
      const std::string text = BlockMapText(
          rows, {.needle = TokenRange{last - 40 < 0 ? 0 : last - 40, last}},
          columns);
      const ReadBack read = Read(text);
      ASSERT_EQ(read.rows.size(), 3u) << text;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(read.rows[i], rows[i].blocks);
      EXPECT_EQ(read.needle.back(), blocks - 1);
      EXPECT_EQ(read.needle.size(), blocks == 1 ? 1u : 2u);
      bool map = false;
      for (const std::string& line : Lines(text)) {
        map |= line.starts_with("layer");
        if (!map) continue;  // the lines above do not depend on the width
        EXPECT_LE(line.size(), std::max(columns, 23)) << line;
      }
    }
  }
}

/// Of a long context most of the map is empty: a line for all of that.
TEST(BlockMapText, LeavesOutWhereThereIsNothing) {
  MapRow row{.step = 0, .layer = 0, .head = 0, .blocks = {}};
  row.blocks.assign(4091, '.');
  row.blocks[0] = 'I';
  row.blocks[100] = 'x';
  const auto lines =
      Lines(BlockMapText({row}, {.needle = TokenRange{64000, 64000}}, 80));
  std::vector<std::string> map;
  for (std::size_t i = 5; i < lines.size(); ++i) {
    if (lines[i].starts_with("layer") || lines[i].starts_with("block")) {
      map.push_back(lines[i].substr(0, 35));
    }
  }
  EXPECT_EQ(map,
            (std::vector<std::string>{"layer  head  0         10        20",
                                      "layer  head  60        70        80",
                                      "blocks 120-1979: . in every row",
                                      "layer  head  1980      1990      20",
                                      "blocks 2040-4090: . in every row"}));
}

// --- The recorder ------------------------------------------------------------

TEST(BlockMap, KeepsWhatTheFilterAsksFor) {
  BlockMap map({.layer = 1, .head = {}, .step = 2}, 100);
  EXPECT_TRUE(Has(map.WhyEmpty(), "ended before the first decode step"));
  std::vector<BlockEvent> events;
  for (const char* reason : {"importance", "probe", "recency", "lower_probe",
                             "evicted_by_recency"}) {
    events.push_back({.reason = reason});
  }
  for (int position = 100; position < 102; ++position) {
    map.OnSelection({.layer = 1, .head = 0, .position = position}, 32, events);
  }
  EXPECT_TRUE(map.rows().empty());
  EXPECT_TRUE(Has(map.WhyEmpty(), "no decode step 2, the last was 1"));
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 2; ++head) {
      map.OnSelection({.layer = layer, .head = head, .position = 102}, 32,
                      events);
    }
  }
  ASSERT_EQ(map.rows().size(), 2u);
  EXPECT_EQ(map.rows()[1].step, 2);
  EXPECT_EQ(map.rows()[1].layer, 1);
  EXPECT_EQ(map.rows()[1].head, 1);
  EXPECT_EQ(map.rows()[1].blocks, "IPR.x");
}

// --- The picture -------------------------------------------------------------

/// The lines of a script's data block.
std::vector<std::string> Data(const std::string& script,
                              const std::string& name) {
  std::vector<std::string> data;
  bool inside = false;
  for (const std::string& line : Lines(script)) {
    if (inside && line == "END") break;
    if (inside) data.push_back(line);
    inside |= line == "$" + name + " << END";
  }
  return data;
}

TEST(BlockMapScript, HasACellForEachTakenBlock) {
  const std::vector<MapRow> rows = {
      {0, 0, 0, "I.PP"}, {0, 0, 1, "IPPR"}, {0, 1, 0, "I..."}};
  const std::string script =
      BlockMapScript(rows, {.needle = TokenRange{40, 70}}, "it's", "so");
  // x, y, left, right, top, bottom; the second layer stands half a row apart.
  EXPECT_EQ(Data(script, "importance"),
            (std::vector<std::string>{"0 0 -0.42 0.42 -0.42 0.42",
                                      "0 1 -0.42 0.42 0.58 1.42",
                                      "0 2.5 -0.42 0.42 2.08 2.92"}));
  EXPECT_EQ(Data(script, "probe").size(), 4u);  // neighbours stay apart
  EXPECT_EQ(Data(script, "recency"),
            std::vector<std::string>{"3 1 2.58 3.42 0.58 1.42"});
  // The ground: each row from end to end.
  EXPECT_EQ(Data(script, "lower_probe").size(), 3u);
  EXPECT_EQ(Data(script, "lower_probe")[0], "1.5 0 -0.5 3.5 -0.42 0.42");
  // Nothing was evicted, and that is in the key all the same.
  EXPECT_FALSE(Has(script, "$evicted_by_recency"));
  EXPECT_TRUE(Has(script, "set label 'evicted_by_recency'"));
  EXPECT_TRUE(Has(script, "from first 0.5, first -0.8 to first 2.5,"));
  EXPECT_TRUE(Has(script, "set title 'it''s' . \"\\n\" . 'so'"));
  // Drawn first, or it would hide the rest.
  EXPECT_LT(script.find("plot $lower_probe"), script.find("$probe using"));
  EXPECT_FALSE(Has(BlockMapScript(rows, {}, "", ""), "needle"));
}

/// Cells too small to stand apart: one for what lies side by side, and none so
/// narrow that it could not be seen.
TEST(BlockMapScript, JoinsTheCellsOfAWideMap) {
  std::string blocks(4096, '.');
  for (int b = 100; b < 200; ++b) blocks[b] = 'P';
  blocks[300] = 'x';
  const std::string script = BlockMapScript({{0, 0, 0, blocks}}, {}, "", "");
  EXPECT_EQ(Data(script, "probe"),
            std::vector<std::string>{"149.5 0 99.5 199.5 -0.42 0.42"});
  EXPECT_EQ(Data(script, "evicted_by_recency"),
            std::vector<std::string>{"300 0 296.8 303.2 -0.42 0.42"});
}

TEST(BlockMapScript, LabelsRowsWhereThereIsRoom) {
  std::vector<MapRow> few, many;
  for (int layer = 0; layer < 40; ++layer) {
    for (int head = 0; head < 16; ++head) {
      (layer < 3 ? few : many).push_back(Pattern(65, layer, head));
    }
  }
  const std::string script = BlockMapScript(few, {}, "", "");
  EXPECT_TRUE(Has(script, "set label 'layer 2' at"));
  EXPECT_TRUE(Has(script, "set label '15' at"));
  EXPECT_FALSE(Has(script, "step 0, layer"));
  const std::string small = BlockMapScript(many, {}, "", "");
  EXPECT_TRUE(Has(small, "set label 'layer 39' at"));
  EXPECT_FALSE(Has(small, "set label '15' at"));
  few.back().step = 1;
  EXPECT_TRUE(Has(BlockMapScript(few, {}, "", ""), "'step 1, layer 2'"));
}

}  // namespace
}  // namespace kvlab
