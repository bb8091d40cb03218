// Charts of the report page as inline SVG. A chart is a value that is drawn by one function: the same value gives the
// same bytes. Colours are CSS classes (s0 ... s7, band, bar, grid, axis), so light and dark need no second drawing, and
// every series has a marker of its own shape, so colour is never the only sign. All text is escaped here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// & < > " ' escaped; bytes that are not UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

// At most `decimals` decimals, no trailing zeros, no "-0": chart coordinates and labels.
std::string short_number(double value, int decimals = 2);

struct Tick {
    double at = 0;
    std::string label;
};
// Multiples of 1, 2 or 5 times a power of ten (at least `smallest`) inside [low, high], about `count` of them.
std::vector<Tick> nice_ticks(double low, double high, int count, double smallest = 0);

inline constexpr int series_styles = 8;

struct SeriesPoint {
    double x = 0;
    double low = 0, mid = 0, high = 0;  // low == high: one value; non-finite points are left out
    std::string tooltip;
};

struct Series {
    std::string name;
    int style = 0;                    // colour and marker, modulo series_styles
    std::vector<SeriesPoint> points;  // as they are joined; with a band by rising x
};

// Lines through `mid` with a marker per point, over bands from low to high. `context` is drawn thin and grey behind.
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
    double from = 0, to = 1;  // on the x axis
    double value = 0;
    std::string tooltip;
    int style = -1;  // -1: the chart's
};

struct BarChart {
    std::string title, x_label, y_label;
    double x_low = 0, x_high = 1;
    std::vector<Bar> bars;
    std::vector<Tick> x_ticks;
    bool percent = true;  // values are shares of 1
    double y_high = 0;    // 0: from the bars
    int style = 0;
    int width = 1040, height = 260;
};
std::string draw(const BarChart& chart);

// One row of cells of equal width, darker for larger values (logarithmic).
struct HeatCell {
    double value = 0;
    std::string tooltip;
};
struct HeatStrip {
    std::string title, x_label;
    std::vector<HeatCell> cells;
    std::vector<Tick> x_ticks;  // at: cell index
    int style = 0;
    int width = 1040, height = 96;
};
std::string draw(const HeatStrip& strip);

// The marker of a series alone, for legends.
std::string marker_icon(int style);

}  // namespace nibble
