// The page's own script: ask for new figures when the server says that there are some (every two seconds where it
// cannot say so), pause that, keep the reader's place, announce what changed.
(function () {
  "use strict";
  var tables = document.getElementById("tables");
  var announcement = document.getElementById("announcement");
  var button = document.getElementById("pause");
  var paused = false;
  var said = summary();
  var places = {};

  function summary() {
    var element = document.getElementById("summary");
    return element ? element.dataset.summary : "";
  }

  button.hidden = false;
  button.addEventListener("click", function () {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    document.documentElement.dataset.paused = String(paused);
    if (!paused) {
      ask();
    }
  });

  function ask() {
    if (!paused && !document.hidden && window.htmx) {
      htmx.trigger(tables, "ratchet:changed");
    }
  }

  // Polling until the stream of events is open, and again while it is not.
  var listens = false;
  if (typeof EventSource !== "undefined") {
    var source = new EventSource("/events");
    source.addEventListener("open", function () { listens = true; });
    source.addEventListener("error", function () { listens = false; });
    source.addEventListener("changed", ask);
    window.addEventListener("pagehide", function () { source.close(); listens = false; });
  }
  setInterval(function () {
    if (!listens) {
      ask();
    }
  }, 2000);
  document.addEventListener("visibilitychange", ask);

  document.body.addEventListener("htmx:beforeRequest", function (event) {
    if (paused || document.hidden) {
      event.preventDefault();
    }
  });

  // A swap makes new elements: how far a table was scrolled sideways would be lost every two seconds.
  document.body.addEventListener("htmx:beforeSwap", function () {
    places = {};
    tables.querySelectorAll(".scroll[id]").forEach(function (region) {
      places[region.id] = region.scrollLeft;
    });
  });

  // Figures change all the time; only a change of workers or problems is worth a listener's attention.
  document.body.addEventListener("htmx:afterSwap", function () {
    Object.keys(places).forEach(function (id) {
      var region = document.getElementById(id);
      if (region) {
        region.scrollLeft = places[id];
      }
    });
    tables.classList.remove("stale");
    if (summary() !== said) {
      said = summary();
      announcement.textContent = said;
    }
  });

  ["htmx:sendError", "htmx:responseError", "htmx:timeout"].forEach(function (name) {
    document.body.addEventListener(name, function () {
      if (!tables.classList.contains("stale")) {
        tables.classList.add("stale");
        said = "The page's server does not answer. These figures are old.";
        announcement.textContent = said;
      }
    });
  });
})();
