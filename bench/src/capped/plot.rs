//! The two plots of a report: tokens per second, and bytes read for each, against the cap.

use emel::internals::budget::in_binary_units;
use emel_cli::chart::{Chart, ChartError, Line, Point, Style};

use super::contender::Contender;
use super::report::{CapReport, Range, Report, Summary};

const MIB: f64 = 1024.0 * 1024.0;
/// Points of the line that the drive's limit is.
const LIMIT_POINTS: u32 = 200;

impl Report {
    /// Tokens per second of each contender, and the drive's limit, as SVG.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn speed_plot(&self) -> Result<String, ChartError> {
        let mut lines = self.lines(|summary| Some(summary.tokens_per_second), 1.0);
        lines.push(Line {
            name: "the drive's limit".to_owned(),
            style: Style::GREY,
            points: self.limit_points(),
            is_bound: true,
            has_markers: self.model.has_experts,
        });
        let chart = self.chart("tokens per second after the first", "tokens/s", lines);
        chart.svg()
    }

    /// MiB read for each token of each contender, as SVG.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn bytes_plot(&self) -> Result<String, ChartError> {
        let lines = self.lines(|summary| summary.bytes_per_token, MIB);
        let chart = self.chart("read for each token after the first", "MiB/token", lines);
        chart.svg()
    }

    fn chart(&self, what: &str, unit: &str, lines: Vec<Line>) -> Chart {
        let size = in_binary_units(self.model.file_bytes);
        Chart {
            title: format!("{} ({size}): {what}", self.model.name),
            note: match self.settings.runs {
                1 => "one run".to_owned(),
                runs => format!("median of {runs} runs; bars from the lowest to the highest"),
            },
            x_label: "memory cap, MiB".to_owned(),
            y_label: unit.to_owned(),
            lines,
        }
    }

    /// A line for each contender, of ranges in units of `unit`.
    fn lines(&self, of: impl Fn(&Summary) -> Option<Range>, unit: f64) -> Vec<Line> {
        let line = |(contender, style): (Contender, Style)| {
            let point = |cap: &CapReport| {
                let range = of(cap.contender(contender)?.summary.as_ref()?)?;
                let spread = (range.min / unit, range.max / unit);
                Some(Point {
                    x: cap.cap_bytes? as f64 / MIB,
                    y: range.median / unit,
                    range: (range.min < range.max).then_some(spread),
                })
            };
            Line {
                name: contender.name().to_owned(),
                style,
                points: by_cap(self.caps.iter().filter_map(point)),
                is_bound: false,
                has_markers: true,
            }
        };
        let contenders = [
            (Contender::Emel, Style::BLUE),
            (Contender::EmelMmap, Style::GREEN),
            (Contender::Llama, Style::ORANGE),
        ];
        contenders.into_iter().map(line).collect()
    }

    /// With experts as many points as there are caps; without, a curve through all caps.
    fn limit_points(&self) -> Vec<Point> {
        let point = |cap_bytes: f64, speed: f64| Point {
            x: cap_bytes / MIB,
            y: speed,
            range: None,
        };
        let rate = self.environment.drive_bytes_per_second();
        if let (false, Some(rate)) = (self.model.has_experts, rate) {
            let last = self.caps.iter().filter_map(|cap| cap.cap_bytes).max();
            let last = last.unwrap_or(0).min(self.model.pass_bytes) as f64;
            let cap =
                (1..LIMIT_POINTS).map(|part| last / f64::from(LIMIT_POINTS) * f64::from(part));
            let rest = |cap: f64| self.model.pass_bytes as f64 - cap;
            return cap.map(|cap| point(cap, rate / rest(cap))).collect();
        }
        by_cap(self.caps.iter().filter_map(|cap| {
            let speed = cap.limit?.tokens_per_second;
            Some(point(cap.cap_bytes? as f64, speed))
        }))
    }
}

fn by_cap(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut points: Vec<Point> = points.collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}
