//! Charts of a few lines, as SVG.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (760, 420);
/// Room at the right for the lines' names.
const NAMES_WIDTH: u32 = 150;
/// Room above the highest point, and more of it for a bound to leave through.
const HEADROOM: f64 = 1.05;
const HEADROOM_OF_BOUND: f64 = 1.25;
/// Half the width of a bar's ends, and of a marker, in pixels.
const BAR: i32 = 5;
const MARKER: i32 = 5;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the chart: {message}")]
pub struct ChartError {
    message: String,
}

/// Lines and what is written around them.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What is shown, and of what.
    pub title: String,
    /// What else is to be known, on a line below the title.
    pub note: String,
    /// The name and the unit of the horizontal axis.
    pub x_label: String,
    /// The name or the unit of the upright axis.
    pub y_label: String,
    /// The lines; later ones are drawn over earlier ones.
    pub lines: Vec<Line>,
}

/// A line with its name.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// How it looks.
    pub style: Style,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// A bound for others: it may leave the chart, which is as high as the others need.
    pub is_bound: bool,
    /// Whether its points have markers.
    pub has_markers: bool,
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Its place on the horizontal axis.
    pub x: f64,
    /// Its value.
    pub y: f64,
    /// From where to where the value was found, for a bar.
    pub range: Option<(f64, f64)>,
}

/// How a line looks. Lines that lie on each other differ in dashes and markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colour: RGBColor,
    /// The length of a dash in pixels; 0 draws a whole line.
    dash: u32,
    marker: Marker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    Disc,
    /// Hollow, so that a disc under it is seen.
    Square,
    Triangle,
    Ring,
    Cross,
}

impl Style {
    /// For the line that matters most.
    pub const BLUE: Self = Self::new(RGBColor(0, 98, 178), 0, Marker::Disc);
    /// For a second line.
    pub const GREEN: Self = Self::new(RGBColor(0, 140, 90), 8, Marker::Square);
    /// For a third one.
    pub const ORANGE: Self = Self::new(RGBColor(200, 80, 30), 3, Marker::Triangle);
    /// For a fourth one.
    pub const PURPLE: Self = Self::new(RGBColor(130, 60, 160), 5, Marker::Ring);
    /// For a bound.
    pub const GREY: Self = Self::new(RGBColor(120, 120, 120), 0, Marker::Cross);

    const fn new(colour: RGBColor, dash: u32, marker: Marker) -> Self {
        Self {
            colour,
            dash,
            marker,
        }
    }

    fn draw_path(self, area: &Area<'_>, path: &[(i32, i32)]) -> Drawn {
        let (path, stroke) = (path.to_vec(), self.colour.stroke_width(2));
        match self.dash {
            0 => area.draw(&PathElement::new(path, stroke))?,
            dash => area.draw(&DashedPathElement::new(path, dash, dash, stroke))?,
        }
        Ok(())
    }

    /// A bar from `low` to `high`, with its ends.
    fn draw_bar(self, area: &Area<'_>, low: (i32, i32), high: (i32, i32)) -> Drawn {
        let thin = self.colour.stroke_width(1);
        area.draw(&PathElement::new(vec![low, high], thin))?;
        for (x, y) in [low, high] {
            area.draw(&PathElement::new(vec![(x - BAR, y), (x + BAR, y)], thin))?;
        }
        Ok(())
    }

    /// The marker with its middle at `place`.
    fn draw_marker(self, area: &Area<'_>, place: (i32, i32)) -> Drawn {
        let (filled, stroke) = (self.colour.filled(), self.colour.stroke_width(2));
        let corner = |x, y| (place.0 + x * MARKER, place.1 + y * MARKER);
        match self.marker {
            Marker::Disc => area.draw(&Circle::new(place, MARKER - 1, filled))?,
            Marker::Square => {
                area.draw(&Rectangle::new([corner(-1, -1), corner(1, 1)], stroke))?;
            }
            Marker::Triangle => area.draw(&TriangleMarker::new(place, MARKER, filled))?,
            Marker::Ring => area.draw(&Circle::new(place, MARKER, stroke))?,
            Marker::Cross => {
                for y in [-1, 1] {
                    let strokes = vec![corner(-1, -y), corner(1, y)];
                    area.draw(&PathElement::new(strokes, stroke))?;
                }
            }
        }
        Ok(())
    }
}

impl Chart {
    /// The chart as SVG.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        self.draw_into(&mut svg).map_err(|error| ChartError {
            message: error.to_string(),
        })?;
        Ok(svg)
    }

    /// The largest place and the largest value that are shown.
    fn extent(&self) -> (f64, f64) {
        let lines = self.lines.iter().filter(|line| !line.is_bound);
        let points = || lines.clone().flat_map(|line| &line.points);
        let widest = points().map(|point| point.x).fold(0.0, f64::max);
        let top = |point: &Point| point.range.map_or(point.y, |(_, max)| max);
        let highest = points().map(top).fold(0.0, f64::max);
        // Without a point there is still a chart, which shows that.
        let headroom = match self.lines.iter().any(|line| line.is_bound) {
            true => HEADROOM_OF_BOUND,
            false => HEADROOM,
        };
        (positive(widest) * HEADROOM, positive(highest) * headroom)
    }

    fn draw_into(&self, svg: &mut String) -> Drawn {
        let (width, height) = self.extent();
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_top(52)
            .margin_right(NAMES_WIDTH)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..width, 0.0..height)?;
        chart
            .configure_mesh()
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .y_labels(8)
            .y_label_formatter(&|value| format!("{}", (value * 100.0).round() / 100.0))
            .x_label_formatter(&|place| format!("{place:.0}"))
            .label_style(("sans-serif", 12))
            .draw()?;
        // A line that lies above all others is left out, with its name.
        let is_inside = |line: &&Line| line.points.iter().any(|point| point.y <= height);
        let lines: Vec<&Line> = self.lines.iter().filter(is_inside).collect();
        let pixel = |x, y| chart.backend_coord(&(x, y));
        for line in &lines {
            draw_line(&area, line, height, &pixel)?;
        }
        write(&area, (16, 18), 16, &self.title)?;
        write(&area, (16, 38), 12, &self.note)?;
        for (row, line) in lines.iter().enumerate() {
            let (x, y) = ((SIZE.0 - NAMES_WIDTH) as i32 + 14, 60 + 20 * row as i32);
            line.style.draw_path(&area, &[(x, y), (x + 24, y)])?;
            if line.has_markers {
                line.style.draw_marker(&area, (x + 12, y))?;
            }
            write(&area, (x + 30, y), 12, &line.name)?;
        }
        area.present()?;
        Ok(())
    }
}

fn positive(number: f64) -> f64 {
    if number > 0.0 { number } else { 1.0 }
}

fn write(area: &Area<'_>, place: (i32, i32), size: u32, text: &str) -> Drawn {
    let anchor = Pos::new(HPos::Left, VPos::Center);
    let style = TextStyle::from(("sans-serif", size).into_font()).pos(anchor);
    area.draw(&Text::new(text, place, style))?;
    Ok(())
}

/// Draws a line where `pixel` places a point.
fn draw_line(
    area: &Area<'_>,
    line: &Line,
    height: f64,
    pixel: &impl Fn(f64, f64) -> (i32, i32),
) -> Drawn {
    let path = below(&line.points, height);
    let path: Vec<(i32, i32)> = path.iter().map(|&(x, y)| pixel(x, y)).collect();
    line.style.draw_path(area, &path)?;
    let inside = line.points.iter().filter(|point| point.y <= height);
    for &Point { x, y, range } in inside.filter(|_| line.has_markers) {
        if let Some((min, max)) = range {
            line.style.draw_bar(area, pixel(x, min), pixel(x, max))?;
        }
        line.style.draw_marker(area, pixel(x, y))?;
    }
    Ok(())
}

/// The line below `height`: what rises above it leaves there.
fn below(points: &[Point], height: f64) -> Vec<(f64, f64)> {
    let mut line = Vec::with_capacity(points.len());
    for (index, point) in points.iter().enumerate() {
        if let Some(before) = index.checked_sub(1).map(|before| &points[before])
            && (before.y > height) != (point.y > height)
        {
            let share = (height - before.y) / (point.y - before.y);
            line.push((before.x + share * (point.x - before.x), height));
        }
        if point.y <= height {
            line.push((point.x, point.y));
        }
    }
    line
}
