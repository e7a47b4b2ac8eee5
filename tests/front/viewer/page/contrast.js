// Texts on the screen whose contrast to what is behind them is below 4.5, as [element, contrast] (WCAG 2.2, 1.4.3).
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (front, back) => [0, 1, 2].map((at) => (front[at] * front[3] + back[at] * (255 - front[3])) / 255);
  const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, share, at) => sum + share * linear(colour[at] / 255), 0);
  const behind = (node) => (node ? over(parts(getComputedStyle(node).backgroundColor), behind(node.parentElement)) : [255, 255, 255]);
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const texts = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
    if (!texts || !node.checkVisibility() || node.closest("script, style, noscript, svg")) continue;
    const back = behind(node), front = over(parts(getComputedStyle(node).color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) bad.push([`${node.tagName} ${node.className} ${node.textContent.slice(0, 20)} on ${back}`, contrast]);
  }
  return bad;
})();
