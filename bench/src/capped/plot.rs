//! The two plots of a report: tokens per second, and bytes read for each, against the cap.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::lane::Lane;
use super::report::{CapReport, Report, Summary};

const SIZE: (u32, u32) = (760, 420);
const LANES: [(Lane, RGBColor); 3] = [
    (Lane::Window, RGBColor(0, 98, 178)),
    (Lane::Mmap, RGBColor(0, 140, 90)),
    (Lane::Llama, RGBColor(200, 80, 30)),
];
const LIMIT_COLOUR: RGBColor = RGBColor(120, 120, 120);
const MIB: f64 = 1024.0 * 1024.0;
/// Points of the line that the drive's limit is.
const LIMIT_POINTS: u32 = 200;
/// Room at the right for the lines' names.
const NAMES_WIDTH: u32 = 150;
/// Room above the highest point, for the limit to leave through.
const HEADROOM: f64 = 1.25;

/// The plots cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {message}")]
pub struct PlotError {
    message: String,
}

/// A line with its name.
struct Line {
    name: &'static str,
    colour: RGBColor,
    /// MiB of the cap, and what is plotted.
    points: Vec<(f64, f64)>,
    is_measured: bool,
}

impl Report {
    /// Tokens per second of each lane, and the drive's limit, as SVG.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn speed_plot(&self) -> Result<String, PlotError> {
        let mut lines = self.lines(|summary| Some(summary.tokens_per_second.median));
        lines.push(Line {
            name: "the drive's limit",
            colour: LIMIT_COLOUR,
            points: self.limit_points(),
            is_measured: false,
        });
        draw("tokens per second after the first", &lines)
    }

    /// MiB read for each token of each lane, as SVG.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn bytes_plot(&self) -> Result<String, PlotError> {
        let lines = self.lines(|summary| Some(summary.bytes_per_token?.median / MIB));
        draw("MiB read for each token after the first", &lines)
    }

    fn lines(&self, of: impl Fn(&Summary) -> Option<f64>) -> Vec<Line> {
        let line = |(lane, colour): (Lane, RGBColor)| {
            let point = |cap: &CapReport| {
                let summary = cap.lane(lane)?.summary.as_ref()?;
                Some((cap.cap_bytes? as f64 / MIB, of(summary)?))
            };
            let mut points: Vec<(f64, f64)> = self.caps.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line {
                name: lane.name(),
                colour,
                points,
                is_measured: true,
            }
        };
        LANES.into_iter().map(line).collect()
    }

    /// With experts as many points as there are caps; without, a curve through all caps.
    fn limit_points(&self) -> Vec<(f64, f64)> {
        let known = self.caps.iter().filter_map(|cap| {
            let limit = cap.limit?;
            Some((cap.cap_bytes? as f64 / MIB, limit.tokens_per_second))
        });
        let mut points: Vec<(f64, f64)> = known.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rate = self.environment.drive_bytes_per_second();
        if let (false, Some(rate)) = (self.model.has_experts, rate) {
            let last = self.caps.iter().filter_map(|cap| cap.cap_bytes).max();
            let last = last.unwrap_or(0).min(self.model.pass_bytes) as f64;
            let cap =
                (1..LIMIT_POINTS).map(|part| last / f64::from(LIMIT_POINTS) * f64::from(part));
            let rest = |cap: f64| self.model.pass_bytes as f64 - cap;
            points = cap.map(|cap| (cap / MIB, rate / rest(cap))).collect();
        }
        points
    }
}

fn draw(title: &str, lines: &[Line]) -> Result<String, PlotError> {
    let measured = lines.iter().filter(|line| line.is_measured);
    let points = || measured.clone().flat_map(|line| &line.points);
    let largest = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    // Without a point there is still a plot, which shows that.
    let width = positive(largest(|point| point.0)) * 1.05;
    let height = positive(largest(|point| point.1)) * HEADROOM;
    let mut svg = String::new();
    let drawn = draw_into(&mut svg, title, lines, (width, height));
    drawn.map_err(|error| PlotError {
        message: error.to_string(),
    })?;
    Ok(svg)
}

fn positive(number: f64) -> f64 {
    if number > 0.0 { number } else { 1.0 }
}

fn draw_into(
    svg: &mut String,
    title: &str,
    lines: &[Line],
    (width, height): (f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .margin_right(NAMES_WIDTH)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..width, 0.0..height)?;
    chart
        .configure_mesh()
        .x_desc("cap, MiB")
        .light_line_style(TRANSPARENT)
        .x_labels(8)
        .y_labels(8)
        .y_label_formatter(&|value| format!("{}", (value * 100.0).round() / 100.0))
        .x_label_formatter(&|cap| format!("{cap:.0}"))
        .label_style(("sans-serif", 12))
        .draw()?;
    // A line that lies above all that was measured is left out, with its name.
    let lines: Vec<(&Line, Vec<(f64, f64)>)> = lines
        .iter()
        .map(|line| {
            let inside = line.points.iter().filter(|point| point.1 <= height);
            (line, inside.copied().collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| !points.is_empty())
        .collect();
    for (line, points) in &lines {
        let style = line.colour.stroke_width(2);
        chart.draw_series(LineSeries::new(points.clone(), style))?;
        if line.is_measured {
            let dots = points.iter();
            let dots = dots.map(|&point| Circle::new(point, 4, line.colour.filled()));
            chart.draw_series(dots)?;
        }
    }
    drop(chart);
    for (row, (line, _)) in lines.iter().enumerate() {
        let (x, y) = ((SIZE.0 - NAMES_WIDTH) as i32 + 14, 44 + 20 * row as i32);
        let stroke = line.colour.stroke_width(2);
        area.draw(&PathElement::new(vec![(x, y), (x + 20, y)], stroke))?;
        let anchor = Pos::new(HPos::Left, VPos::Center);
        let style = TextStyle::from(("sans-serif", 12).into_font()).pos(anchor);
        area.draw(&Text::new(line.name, (x + 26, y), style))?;
    }
    area.present()?;
    Ok(())
}
