// Draws the history; the table below it has the same figures for who cannot see or run this.
(function () {
  "use strict";
  var place = document.getElementById("chart");
  var names = ["fresh", "duplicate", "invalid", "late", "conflict"];
  var plot = null;
  if (!place || typeof uPlot === "undefined") {
    return;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function options() {
    var tones = { fresh: "--tone-ok", duplicate: "--accent", invalid: "--tone-bad", late: "--tone-busy", conflict: "--tone-idle" };
    var dashes = { fresh: [], duplicate: [6, 3], invalid: [2, 2], late: [8, 2, 2, 2], conflict: [1, 3] };
    var axis = { stroke: colour("--tone-idle"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    var value = function (plot, value) { return value == null ? "not known" : value.toFixed(1); };
    return {
      width: place.clientWidth,
      height: 172,
      // At least a minute: around a single point uPlot would draw years.
      scales: { x: { range: function (plot, low, high) { return [Math.min(low, high - 60), high]; } } },
      series: [{}].concat(names.map(function (name) {
        return { label: name, stroke: colour(tones[name]), width: 2, dash: dashes[name], points: { show: false }, value: value };
      })),
      axes: [axis, Object.assign({}, axis, { size: 70 })]
    };
  }

  // A step that no worker tells about is a gap, not a 0.
  function data(history) {
    var points = history.points, step = history.step_s, times = [], lines = names.map(function () { return []; });
    points.times.forEach(function (time, index) {
      if (index && time - points.times[index - 1] > step) {
        times.push(points.times[index - 1] + step);
        lines.forEach(function (line) { line.push(null); });
      }
      times.push(time);
      names.forEach(function (name, each) {
        lines[each].push(points.covered[index] ? points.counts[name][index] / step : null);
      });
    });
    return [times].concat(lines);
  }

  function draw() {
    fetch(place.dataset.history).then(function (answer) {
      return answer.ok ? answer.json() : Promise.reject(new Error("status " + answer.status));
    }).then(function (history) {
      place.hidden = !history.points.times.length;
      if (place.hidden) {
        return;
      }
      if (plot === null) {
        plot = new uPlot(options(), data(history), place);
      } else {
        plot.setData(data(history));
      }
    }).catch(function () {});
  }

  draw();
  setInterval(function () {
    if (!document.hidden && document.documentElement.dataset.paused !== "true") {
      draw();
    }
  }, 10000);
  window.addEventListener("resize", function () {
    if (plot !== null) {
      plot.setSize({ width: place.clientWidth, height: 240 });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    if (plot !== null) {
      plot.destroy();
      plot = null;
      draw();
    }
  });
})();
