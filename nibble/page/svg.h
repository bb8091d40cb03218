// Charts as inline SVG. draw() is a pure function: the same chart gives the same bytes. Colours are CSS classes (s0 ...
// s7, band, bar, grid, axis), so light and dark mode share one drawing. Every series also has its own marker shape, so
// colour is never the only cue. All text is escaped here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Escapes & < > " '. Bytes that are not UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

// Formats with at most `decimals` decimals, without trailing zeros and "-0": for coordinates and labels.
std::string short_number(double value, int decimals = 2);

struct Tick {
    double at = 0;
    std::string label;
};
// Returns about `count` multiples of 1, 2 or 5 times a power of ten (at least `smallest`) in [low, high].
std::vector<Tick> nice_ticks(double low, double high, int count, double smallest = 0);

inline constexpr int series_styles = 8;

struct SeriesPoint {
    double x = 0;
    double low = 0, mid = 0, high = 0;  // low == high: no band; non-finite points are not drawn
    std::string tooltip;
};

struct Series {
    std::string name;
    int style = 0;                    // colour and marker, modulo series_styles
    std::vector<SeriesPoint> points;  // in drawing order; with a band by rising x
};

// Lines through `mid` with a marker per point, over bands from low to high. `context` is drawn thin and grey in the
// background.
struct LineChart {
    std::string title;  // for screen readers
    std::string x_label, y_label;
    double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
    std::vector<Series> series;
    std::vector<Series> context;
    std::vector<Tick> x_ticks;  // empty: whole numbers between x_low and x_high
    int width = 1040, height = 360;
};
std::string draw(const LineChart& chart);

struct Bar {
    double from = 0, to = 1;  // interval on the x axis
    double value = 0;
    std::string tooltip;
    int style = -1;  // -1: the style of the chart
};

struct BarChart {
    std::string title, x_label, y_label;
    double x_low = 0, x_high = 1;
    std::vector<Bar> bars;
    std::vector<Tick> x_ticks;
    bool percent = true;  // values are fractions of 1
    double y_high = 0;    // 0: derived from the bars
    int style = 0;
    int width = 1040, height = 260;
};
std::string draw(const BarChart& chart);

// One row of cells of equal width; larger values are darker (logarithmic).
struct HeatCell {
    double value = 0;
    std::string tooltip;
};
struct HeatStrip {
    std::string title, x_label;
    std::vector<HeatCell> cells;
    std::vector<Tick> x_ticks;  // `at` is a cell index
    int style = 0;
    int width = 1040, height = 96;
};
std::string draw(const HeatStrip& strip);

// Returns the marker of a series alone, for legends.
std::string marker_icon(int style);

}  // namespace nibble
